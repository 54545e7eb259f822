#include "tgflow/preparer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "tgflow/frontier.hpp"
#include "tgflow/memory.hpp"
#include "tgflow/random.hpp"
#include "tgflow/replay.hpp"

namespace tgflow {
namespace {

// purposes of keys, as KeyDomain of tgflow/base/keys.py
constexpr uint64_t kNegativesKey = 1, kReplayKey = 2, kHopKey = 16;

constexpr int64_t kParams = 5;                                      // words of a hop's sampler
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();  // limit of a frontier, with all its slots

/// a * b rows, or an error if a batch cannot have that many.
int64_t rows_of(int64_t a, int64_t b) {
  int64_t rows;
  if (!__builtin_mul_overflow(a, b, &rows) && rows < kMostRows) return rows;
  throw std::length_error("a batch of " + std::to_string(a) + " x " + std::to_string(b) +
                          " rows is too large: fewer events, negatives or neighbors each would do");
}

/// A reusable buffer of values; growing it loses its contents.
template <typename T>
class Room {
 public:
  T* of(int64_t size) {
    if (size > values_.size()) values_ = HugeArray<T>(size + size / 4);
    return values_.data();
  }

 private:
  HugeArray<T> values_{0};
};

/// A frontier's columns.
struct Columns {
  Room<node_t> node;
  Room<tick_t> t;
  Room<int64_t> position;

  FrontierOut of(int64_t size) { return {node.of(size), t.of(size), position.of(size)}; }
};

}  // namespace

int64_t padded_rows(int64_t rows) {
  int64_t size = 64;
  while (size < rows) size *= 2;
  return size > 8192 && rows <= size / 4 * 3 ? size / 4 * 3 : size;
}

/// Scratch memory for preparing one batch at a time.
struct Preparer::Workspace {
  Room<eid_t> start, cut, events;
  Room<tick_t> query_t;
  Room<int64_t> query_position;
  Columns above, below;
  Room<node_t> neighbor;
  Room<tick_t> neighbor_t;
  Room<int32_t> count;
  Room<int64_t> ids;
  RowIndex index;
  std::vector<EventList> lists;
};

/// The preparation of one batch.
class Preparer::Preparation {
 public:
  Preparation(const Preparer& plan, const BatchRequest& request, Workspace& work, Slab& slab)
      : plan_(plan), rules_(plan.rules_), ask_(request), work_(work), slab_(slab) {}

  BatchLayout run() {
    draw_events();
    draw_negatives();
    keep_rows();
    keep_log_q();
    count_past();
    if (ask_.is_drawn_only) {
      keep_queries();
    } else if (rules_.with_nodes) {
      descend(ask_queries());
    } else {
      keep_starts();
    }
    if (ask_.edge_x.is_read) find_events();
    if (ask_.edge_x.rows != nullptr) gather_edges();
    if (ask_.node_x.is_read) read_nodes();
    return std::move(out_);
  }

 private:
  int64_t m() const { return rules_.num_negatives; }
  int64_t num() const { return out_.num_events; }
  int64_t num_drawn() const { return num() * m(); }
  const EventLog& log() const { return plan_.log_; }
  node_t* src() const { return slab_.at<node_t>(out_.ends); }
  node_t* dst() const { return src() + num(); }
  node_t* negative_dst() const { return src() + 2 * num(); }
  /// Null if negatives have the sources of their events.
  node_t* negative_src() const { return has_sources() ? negative_dst() + num_drawn() : nullptr; }
  bool is_given() const { return ask_.negatives.dst != nullptr; }
  bool has_sources() const { return is_given() ? ask_.negatives.src != nullptr : rules_.draws_pairs; }
  bool has_mask() const { return !is_given() && rules_.every > 1 && m() > 1; }
  int64_t room(int64_t rows) const { return ask_.is_padded ? padded_rows(rows) : rows; }

  template <typename T>
  void pad(int64_t column, int64_t rows, int64_t room, int64_t width, T value) const {
    std::fill(slab_.at<T>(column) + rows * width, slab_.at<T>(column) + room * width, value);
  }

  void draw_events();
  void draw_negatives();
  void keep_rows();
  void keep_log_q();
  void count_past();
  void fill_queries(tick_t* t, int64_t* position) const;
  int64_t ask_queries();
  void keep_queries();
  void descend(int64_t size);
  void add_block(int64_t size, int64_t k);
  void sample(size_t hop, int64_t size, const FrontierOut& targets);
  void keep_inputs(int64_t size, const FrontierOut& inputs);
  void keep_starts();
  void find_events();
  void gather_edges();
  void read_nodes();

  const Preparer& plan_;
  const BatchRules& rules_;
  const BatchRequest& ask_;
  Workspace& work_;
  Slab& slab_;
  BatchLayout out_{};
  int64_t num_found_ = 0;  // distinct events, without padding
};

/// The positions of new and replayed events, their columns, and the start of each one's batch.
void Preparer::Preparation::draw_events() {
  out_.num_new = ask_.only != nullptr ? ask_.num_only : ask_.end - ask_.begin;
  const int64_t num_replayed = std::min(ask_.num_replay, ask_.begin - ask_.replay_begin);
  out_.num_events = out_.num_new + num_replayed;
  const int64_t num_negatives = rows_of(num(), m() * (has_sources() ? 2 : 1));
  out_.num_queries = 2 * num() + num_negatives;
  out_.eid = slab_.add<eid_t>(num());
  out_.t = slab_.add<tick_t>(num());
  if (has_mask()) {
    out_.mask = slab_.add<bool>(num_drawn());
    bool* const mask = slab_.at<bool>(out_.mask);
    for (int64_t i = 0; i < num(); ++i) {
      std::fill_n(mask + i * m(), m(), is_chosen(ask_.begin + i, rules_.every));
      mask[i * m()] = true;
    }
  }
  out_.ends = slab_.add<node_t>(out_.num_queries);
  auto* const eid = slab_.at<eid_t>(out_.eid);
  if (ask_.only != nullptr) {
    std::copy_n(ask_.only, out_.num_new, eid);
  } else {
    std::iota(eid, eid + out_.num_new, ask_.begin);
  }
  if (num_replayed > 0) {
    draw_replay({ask_.replay_begin, ask_.begin, rules_.half_life}, derive_key(ask_.key, kReplayKey),
                num_replayed, eid + out_.num_new);
  }
  log().gather(eid, num(), src(), dst(), slab_.at<tick_t>(out_.t), nullptr);
  eid_t* const start = work_.start.of(num());
  for (int64_t i = 0; i < num(); ++i) {
    if (ask_.num_replay == 0) {
      start[i] = ask_.begin;
    } else {
      const int64_t past = eid[i] - rules_.start, size = rules_.batch_size;
      start[i] = std::max<eid_t>(ask_.since.eid, rules_.start + (past - (past % size + size) % size));
    }
  }
}

void Preparer::Preparation::draw_negatives() {
  if (is_given()) {
    std::copy_n(ask_.negatives.dst, num_drawn(), negative_dst());
    if (has_sources()) std::copy_n(ask_.negatives.src, num_drawn(), negative_src());
    return;
  }
  const eid_t limit = std::max(ask_.end, rules_.cut);
  PairIndex& pairs = plan_.pairs_;
  if (limit > pairs.size()) pairs.read(limit, nullptr);
  if (rules_.draws_pairs && limit > pairs.num_pair_events()) pairs.read_pairs(limit);
  const eid_t* cut = work_.start.of(num());
  if (rules_.cut >= 0) {
    eid_t* const all = work_.cut.of(num());
    std::fill_n(all, num(), rules_.cut);
    cut = all;
  }
  PairIndex::Request request{derive_key(ask_.key, kNegativesKey), src(), dst(), cut, num(), m(), limit};
  request.pairs_from = rules_.pairs_from;
  request.collide = rules_.collide;
  request.replace = rules_.replace;
  request.mask = has_mask() ? slab_.at<bool>(out_.mask) : nullptr;
  out_.num_fallbacks = rules_.draws_pairs ? pairs.draw_pairs(request, negative_src(), negative_dst())
                                          : pairs.draw_destinations(request, negative_dst());
  for (int64_t i = 0; has_mask() && rules_.draws_pairs && i < num_drawn(); ++i) {
    if (request.mask[i]) continue;
    negative_dst()[i] = dst()[i / m()];
    negative_src()[i] = src()[i / m()];
  }
}

/// Copies the requested rows of the batch, behind all of them, if there are others.
void Preparer::Preparation::keep_rows() {
  const int64_t all = num();
  out_.num_whole = all;
  out_.whole_eid = out_.eid;
  out_.whole_t = out_.t;
  out_.whole_ends = out_.ends;
  if (ask_.num_rows < 0) return;
  const int64_t* const rows = ask_.rows;
  const int64_t size = ask_.num_rows, num_ends = 2 + m() * (has_sources() ? 2 : 1);
  if (size > 0 && rows[size - 1] >= all) {
    throw std::out_of_range("row " + std::to_string(rows[size - 1]) + " is not in a batch of " +
                            std::to_string(all));
  }
  out_.num_events = size;
  out_.num_new = std::lower_bound(rows, rows + size, out_.num_new) - rows;
  out_.num_queries = num_ends * size;
  out_.eid = slab_.add<eid_t>(size);
  out_.t = slab_.add<tick_t>(size);
  out_.ends = slab_.add<node_t>(out_.num_queries);
  const auto keep = [&](int64_t from, int64_t to, int64_t width) {
    for (int64_t i = 0; i < size; ++i)
      std::copy_n(slab_.at<int64_t>(from) + rows[i] * width, width, slab_.at<int64_t>(to) + i * width);
  };
  keep(out_.whole_eid, out_.eid, 1);
  keep(out_.whole_t, out_.t, 1);
  for (int64_t column = 0; column < num_ends; column += column < 2 ? 1 : m()) {
    const int64_t bytes = column * static_cast<int64_t>(sizeof(node_t));
    keep(out_.whole_ends + bytes * all, out_.ends + bytes * size, column < 2 ? 1 : m());
  }
  eid_t* const start = work_.start.of(all);
  for (int64_t i = 0; i < size; ++i) start[i] = start[rows[i]];
}

/// The logarithms of given negatives, of the requested rows.
void Preparer::Preparation::keep_log_q() {
  const float* const log_q = ask_.negatives.log_q;
  if (log_q == nullptr) return;
  out_.log_q = slab_.add<float>(num_drawn());
  for (int64_t i = 0; i < num(); ++i) {
    const int64_t row = ask_.num_rows < 0 ? i : ask_.rows[i];
    std::copy_n(log_q + row * m(), m(), slab_.at<float>(out_.log_q) + i * m());
  }
}

void Preparer::Preparation::count_past() {
  EventCounts* const counts = plan_.counts_;
  if (counts == nullptr || !ask_.with_counts) return;
  const int64_t size = rows_of(counts->width(), rows_of(num(), 1 + m()));
  out_.counts = rules_.has_float_counts ? slab_.add<float>(size) : slab_.add<double>(size);
  const eid_t* limit = rules_.sees_all_before ? slab_.at<eid_t>(out_.eid) : work_.start.of(num());
  const eid_t* const last = std::max_element(limit, limit + num());
  counts->read_upto(std::max(ask_.end, last == limit + num() ? 0 : *last));
  std::vector<int64_t> relation;
  if (log().has_relation()) {
    const eid_t* const eid = slab_.at<eid_t>(out_.eid);
    std::transform(eid, eid + num(), std::back_inserter(relation),
                   [&](eid_t e) { return log().relation()[e]; });
  }
  const auto answer = [&](auto* out) {
    counts->answer({src(), dst(), negative_src(), negative_dst(), slab_.at<tick_t>(out_.t), limit,
                    relation.empty() ? nullptr : relation.data(), num(), m(), ask_.since.eid},
                   out, ask_.is_drawn_only);
  };
  rules_.has_float_counts ? answer(slab_.at<float>(out_.counts)) : answer(slab_.at<double>(out_.counts));
}

/// Time and position of each query.
void Preparer::Preparation::fill_queries(tick_t* query_t, int64_t* position) const {
  const auto* const t = slab_.at<tick_t>(out_.t);
  const eid_t* const start = work_.start.of(num());
  const bool has_starts = !rules_.sees_all_before || rules_.with_memory || !rules_.with_nodes;
  for (int64_t i = 0; i < out_.num_queries; ++i) {
    const int64_t event = i < 2 * num() ? i % num() : (i - 2 * num()) / m() % num();
    query_t[i] = rules_.fanouts.empty() ? 0 : t[event];
    position[i] = has_starts ? start[event] : ask_.begin;
  }
}

/// The distinct queries of all roots, in `work_.above`; returns their number.
int64_t Preparer::Preparation::ask_queries() {
  const int64_t size = out_.num_queries;
  out_.row = slab_.add<int64_t>(size);
  tick_t* const query_t = work_.query_t.of(size);
  int64_t* const position = work_.query_position.of(size);
  fill_queries(query_t, position);
  return unique_queries({src(), query_t, position, size}, work_.above.of(size), slab_.at<int64_t>(out_.row),
                        work_.index);
}

/// What kernels make the batch of: all queries, and words that they read.
void Preparer::Preparation::keep_queries() {
  const auto num_hops = static_cast<int64_t>(rules_.fanouts.size());
  out_.query_t = slab_.add<tick_t>(out_.num_queries);
  out_.query_position = slab_.add<int64_t>(out_.num_queries);
  out_.words = slab_.add<int64_t>(2 + kParams * num_hops);
  fill_queries(slab_.at<tick_t>(out_.query_t), slab_.at<int64_t>(out_.query_position));
  auto* word = slab_.at<int64_t>(out_.words);
  *word++ = ask_.begin;
  *word++ = ask_.since.t;
  for (int64_t hop = 0; hop < num_hops; ++hop) {
    const uint64_t key = derive_key(ask_.hop_key, kHopKey + static_cast<uint64_t>(hop));
    for (const int64_t each : {rules_.sees_all_before ? ask_.end : kEveryEvent, static_cast<int64_t>(key),
                               kEveryEvent, ask_.since.t, ask_.since.eid})
      *word++ = each;
  }
}

void Preparer::Preparation::descend(int64_t size) {
  for (size_t hop = 0; hop < rules_.fanouts.size(); ++hop) {
    const int64_t k = rules_.fanouts[hop];
    const FrontierOut targets = work_.above.of(size);
    add_block(size, k);
    sample(hop, size, targets);
    const BatchLayout::Block& block = out_.blocks.back();
    const bool is_lowest = hop + 1 == rules_.fanouts.size();
    FrontierOut below = work_.below.of(rows_of(size, k + 1));
    const FrontierOut columns{below.node, is_lowest ? nullptr : below.t,
                              is_lowest && !rules_.with_memory ? nullptr : below.position};
    size =
        expand_frontier({targets.node, targets.t, targets.position, size},
                        {work_.neighbor.of(0), work_.neighbor_t.of(0), k}, rules_.seconds_per_tick, columns,
                        {slab_.at<int64_t>(block.target), slab_.at<int64_t>(block.neighbor),
                         slab_.at<bool>(block.mask), slab_.at<float>(block.dt)},
                        work_.index);
    std::swap(work_.above, work_.below);
  }
  keep_inputs(size, work_.above.of(0));
}

/// Makes room for a block of `size` targets, followed by padding.
void Preparer::Preparation::add_block(int64_t size, int64_t k) {
  const int64_t rows = room(size), slots = rows_of(rows, k);
  const int64_t target = slab_.add<int64_t>(rows), neighbor = slab_.add<int64_t>(slots);
  const int64_t mask = slab_.add<bool>(slots), dt = slab_.add<float>(slots), eid = slab_.add<eid_t>(slots);
  const int64_t edge_row = ask_.edge_x.is_read ? slab_.add<int64_t>(slots) : -1;
  out_.blocks.push_back({rows, target, neighbor, mask, dt, eid, edge_row});
  pad<int64_t>(target, size, rows, 1, 0);
  pad<int64_t>(neighbor, size, rows, k, 0);
  pad<bool>(mask, size, rows, k, false);
  pad<float>(dt, size, rows, k, 0);
  pad<eid_t>(eid, size, rows, k, kNoEvent);
}

void Preparer::Preparation::sample(size_t hop, int64_t size, const FrontierOut& targets) {
  const int64_t k = rules_.fanouts[hop];
  const bool sees_all = rules_.sees_all_before;
  Sampler sampler = rules_.sampler;
  sampler.key = derive_key(ask_.hop_key, kHopKey + hop);
  const Queries queries{
      targets.node, targets.t, sees_all ? nullptr : targets.position, sees_all ? ask_.end : kEveryEvent, size,
      nullptr,      ask_.since};
  sample_neighbors(plan_.graph_->store(), queries, sampler,
                   {work_.neighbor.of(size * k), work_.neighbor_t.of(size * k),
                    slab_.at<eid_t>(out_.blocks.back().eid), work_.count.of(size), k});
}

/// The input rows of the lowest block, and the positions as of which it reads their memory.
void Preparer::Preparation::keep_inputs(int64_t size, const FrontierOut& inputs) {
  out_.num_nodes = room(size);
  out_.nodes = slab_.add<node_t>(out_.num_nodes);
  out_.position = slab_.add<int64_t>(out_.num_nodes);
  std::copy_n(inputs.node, size, slab_.at<node_t>(out_.nodes));
  auto* const position = slab_.at<int64_t>(out_.position);
  if (rules_.with_memory) {
    std::copy_n(inputs.position, size, position);
  } else {
    std::fill_n(position, size, ask_.begin);
  }
  pad<node_t>(out_.nodes, size, out_.num_nodes, 1, 0);
  pad<int64_t>(out_.position, size, out_.num_nodes, 1, ask_.begin);
  if (!ask_.node_x.is_read) return;
  int64_t* const ids = work_.ids.of(out_.num_nodes);
  for (int64_t i = 0; i < size; ++i) ids[i] = inputs.node[i] >= ask_.node_end ? -1 : inputs.node[i];
  std::fill(ids + size, ids + out_.num_nodes, -1);
}

/// Without rows of nodes: the start of each event's batch.
void Preparer::Preparation::keep_starts() {
  out_.num_nodes = 0;
  out_.nodes = slab_.add<node_t>(0);
  out_.position = slab_.add<int64_t>(num());
  std::copy_n(work_.start.of(num()), num(), slab_.at<int64_t>(out_.position));
}

/// The distinct events of all blocks and of the batch, in `work_.events`, and the row of each.
void Preparer::Preparation::find_events() {
  out_.own_row = slab_.add<int64_t>(num());
  work_.lists.clear();
  int64_t total = 1 + num();
  for (size_t hop = 0; hop < out_.blocks.size(); ++hop) {
    const BatchLayout::Block& block = out_.blocks[hop];
    const int64_t slots = block.targets * rules_.fanouts[hop];
    work_.lists.push_back({slab_.at<eid_t>(block.eid), slots, slab_.at<int64_t>(block.edge_row)});
    total += slots;
  }
  work_.lists.push_back({slab_.at<eid_t>(out_.eid), num(), slab_.at<int64_t>(out_.own_row)});
  const std::vector<int64_t> counts =
      unique_events(work_.lists, work_.events.of(rows_of(total, 1)), work_.index);
  num_found_ = counts.back();
  out_.num_edges = room(num_found_);
  out_.num_in_blocks = ask_.is_padded ? out_.num_edges : counts[counts.size() - 2];
  if (ask_.edge_x.rows != nullptr) return;
  out_.edge_ids = slab_.add<int64_t>(out_.num_edges);
  std::copy_n(work_.events.of(0), num_found_, slab_.at<int64_t>(out_.edge_ids));
  pad<int64_t>(out_.edge_ids, num_found_, out_.num_edges, 1, kNoEvent);
}

/// The features of those events, and of the batch's own ones among them.
void Preparer::Preparation::gather_edges() {
  const RowTable& table = *ask_.edge_x.rows;
  out_.edge_x = slab_.add<std::byte>(out_.num_edges * table.row_bytes);
  out_.x = slab_.add<std::byte>(num() * table.row_bytes);
  auto* const rows = slab_.at<std::byte>(out_.edge_x);
  gather_rows(table, work_.events.of(0), num_found_, rows);
  std::memset(rows + num_found_ * table.row_bytes, 0,
              static_cast<size_t>((out_.num_edges - num_found_) * table.row_bytes));
  gather_rows({rows, table.row_bytes, out_.num_edges}, slab_.at<int64_t>(out_.own_row), num(),
              slab_.at<std::byte>(out_.x));
}

void Preparer::Preparation::read_nodes() {
  const int64_t* const ids = work_.ids.of(0);
  if (ask_.node_x.rows == nullptr) {
    out_.node_ids = slab_.add<int64_t>(out_.num_nodes);
    std::copy_n(ids, out_.num_nodes, slab_.at<int64_t>(out_.node_ids));
    return;
  }
  const RowTable& table = *ask_.node_x.rows;
  out_.node_x = slab_.add<std::byte>(out_.num_nodes * table.row_bytes);
  gather_rows(table, ids, out_.num_nodes, slab_.at<std::byte>(out_.node_x));
}

Preparer::Preparer(const EventLog& log, TemporalGraph* graph, PairIndex& pairs, EventCounts* counts,
                   BatchRules rules)
    : log_(log), graph_(graph), pairs_(pairs), counts_(counts), rules_(std::move(rules)) {}

Preparer::~Preparer() = default;

BatchLayout Preparer::prepare(const BatchRequest& request, Slab& slab) {
  slab.begin();
  std::unique_ptr<Workspace> work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      work = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (work == nullptr) work = std::make_unique<Workspace>();
  BatchLayout layout = Preparation(*this, request, *work, slab).run();
  slab.end();
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(work));
  return layout;
}

}  // namespace tgflow
