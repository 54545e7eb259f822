#include "tgflow/pair_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>

#include "tgflow/random.hpp"

namespace tgflow {
namespace {

/// Purposes of draw numbers, so that no two choices share random bits.
enum : uint64_t { kAtCut, kAtLimit, kSource, kPairScan, kPairTry };
constexpr uint64_t kPairTries = 16;
constexpr uint64_t kOtherType = kPairTry + kPairTries;

int64_t count_before(const std::vector<eid_t>& first, eid_t before) {
  return std::lower_bound(first.begin(), first.end(), before) - first.begin();
}

/// The `rank`-th i in [begin, end) for which `keep(i)`, or -1.
template <typename Keep>
int64_t nth(int64_t begin, int64_t end, int64_t rank, Keep keep) {
  for (int64_t i = begin; i < end; ++i) {
    if (keep(i) && rank-- == 0) return i;
  }
  return -1;
}

/// One of the i in [begin, end) for which `keep(i)`, uniformly, or -1 if there is none. Linear.
template <typename Keep>
int64_t any_of_range(uint64_t key, int64_t slot, uint64_t draw, int64_t begin, int64_t end, Keep keep) {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += keep(i);
  return count == 0 ? -1 : nth(begin, end, random_below(key, static_cast<uint64_t>(slot), draw, count), keep);
}

/// Index of the first occurrence of each node but `positive` and kNoNode in `nodes`, by node.
void first_places(const node_t* nodes, int64_t size, node_t positive, std::vector<int64_t>& places) {
  places.resize(static_cast<std::size_t>(size));
  std::iota(places.begin(), places.end(), 0);
  std::sort(places.begin(), places.end(),
            [&](int64_t a, int64_t b) { return nodes[a] != nodes[b] ? nodes[a] < nodes[b] : a < b; });
  const auto last =
      std::unique(places.begin(), places.end(), [&](int64_t a, int64_t b) { return nodes[a] == nodes[b]; });
  places.erase(std::remove_if(places.begin(), last,
                              [&](int64_t i) { return nodes[i] == kNoNode || nodes[i] == positive; }),
               places.end());
}

}  // namespace

void FirstSeen::see(node_t v, eid_t eid) {
  if (rank.of(v) >= 0) return;
  rank.set(v, static_cast<int64_t>(node.size()));
  node.push_back(v);
  first.push_back(eid);
}

void EventMarks::append(uint64_t marks, int64_t num) {
  if (size_ % (64 * kWords) == 0) {
    before_.push_back(num_);
    words_.resize(words_.size() + kWords);
  }
  words_[static_cast<std::size_t>(size_ / 64)] |= marks << size_ % 64;
  num_ += __builtin_popcountll(marks);
  size_ += num;
}

int64_t EventMarks::num_before(eid_t position) const {
  const int64_t before = position - first_;
  if (before >= size_) return num_;
  if (before <= 0) return 0;
  const auto word = static_cast<std::size_t>(before / 64);
  int64_t num = before_[word / kWords];
  for (std::size_t i = word / kWords * kWords; i < word; ++i) num += __builtin_popcountll(words_[i]);
  return num + __builtin_popcountll(words_[word] & ((uint64_t{1} << before % 64) - 1));
}

eid_t EventMarks::nth(int64_t i) const {
  const auto block = std::upper_bound(before_.begin(), before_.end(), i) - before_.begin() - 1;
  int64_t rest = i - before_[static_cast<std::size_t>(block)];
  auto word = static_cast<std::size_t>(block * kWords);
  for (int64_t num; (num = __builtin_popcountll(words_[word])) <= rest; ++word) rest -= num;
  uint64_t bits = words_[word];
  for (; rest > 0; --rest) bits &= bits - 1;
  return first_ + static_cast<eid_t>(word) * 64 + __builtin_ctzll(bits);
}

PairIndex::PairIndex(PairIndex& other, eid_t first) : PairIndex(other.log_, other.shard_, first) {
  const std::unique_lock<std::shared_mutex> lock(other.mutex_);
  if (log_ == nullptr) return;
  if (other.links_ == nullptr) other.links_ = std::make_shared<PairLinks>(*log_, shard_);
  links_ = other.links_;
}

int64_t PairIndex::size() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return size_;
}

int64_t PairIndex::num_destinations(eid_t before) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return count_before(destinations_.first, before);
}

void PairIndex::destinations(eid_t before, node_t* out) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::copy_n(destinations_.node.begin(), count_before(destinations_.first, before), out);
}

std::vector<node_t> PairIndex::destinations_of(node_t src, eid_t before) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  while (static_cast<int64_t>(pair_before_.size()) < pairs_.num()) {
    const auto number = static_cast<int64_t>(pair_before_.size());
    const node_t of = log_->src()[pairs_.nth(number)];
    pair_before_.push_back(latest_pair_.of(of));
    latest_pair_.set(of, number);
  }
  std::vector<node_t> found;
  const int64_t end = pairs_.num_before(before);
  for (int64_t i = latest_pair_.of(src); i >= 0; i = pair_before_[static_cast<std::size_t>(i)]) {
    if (i < end) found.push_back(log_->dst()[pairs_.nth(i)]);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

void PairIndex::first_meetings(eid_t begin, eid_t end, bool* out) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (eid_t eid = begin; eid < end; ++eid) *out++ = first_meetings_.at(eid);
}

int64_t PairIndex::num_pairs(eid_t before) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return pairs_.num_before(before);
}

void PairIndex::append(const node_t* src, const node_t* dst, const int64_t* type, int64_t n) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  add(src, dst, type, n);
}

void PairIndex::add(const node_t* src, const node_t* dst, const int64_t* type, int64_t n) {
  if (n == 0) return;
  if (size_ > 0 && has_types_ != (type != nullptr)) {
    throw std::invalid_argument("types of nodes must be given for all events or for none");
  }
  has_types_ = type != nullptr;
  for (int64_t i = 0; i < n; ++i, ++size_) {
    destinations_.see(dst[i], size_);
    if (has_types_) see_type(dst[i], type[i]);
    if (destinations_.node.size() == 1) mark_source(src[i]);
  }
}

void PairIndex::read(eid_t end, const int64_t* type) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (end <= size_) return;
  check_range(size_, end);
  add(log_->src() + size_, log_->dst() + size_, type, end - size_);
}

/// Adds the pair of the next event, if it is that of the log: without a second destination, negatives are of
/// the sources of pairs.
void PairIndex::mark_source(node_t src) {
  if (num_pair_events_ != size_ || log_ == nullptr || size_ >= log_->size()) return;
  sources_.see(src, size_);
  const eid_t first = sources_.first[static_cast<std::size_t>(sources_.rank.of(src))];
  const uint8_t is_first = first == size_ ? 2 : log_->clocks()[first] == log_->clocks()[size_];
  mark(&is_first, 1);
}

int64_t PairIndex::num_pair_events() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return num_pair_events_;
}

void PairIndex::read_pairs(int64_t end) {
  if (shard_.num_other_parts > 0 && end > num_pair_events()) {
    throw std::invalid_argument("the pairs of a shard are read in steps, by all ranks together");
  }
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  read_links(end);
  while (num_pair_events_ < end) {
    uint8_t found[64];
    const int64_t num = std::min<int64_t>(pairs_.room(), end - num_pair_events_);
    for (int64_t i = 0; i < num; ++i) found[i] = novelty(num_pair_events_ + i, found);
    mark(found, num);
  }
}

void PairIndex::find_pairs(int64_t end, uint8_t* is_first) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  read_links(end);
  for (eid_t eid = num_pair_events_; eid < end; ++eid) {
    const bool is_own = shard_.local(log_->src()[eid]) != kNotHeld;
    is_first[eid - num_pair_events_] = is_own ? novelty(eid, is_first) : 0;
  }
}

void PairIndex::mark_pairs(int64_t end, const uint8_t* is_first) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  check_range(num_pair_events_, end);
  mark(is_first, end - num_pair_events_);
}

void PairIndex::check_range(eid_t begin, eid_t end) const {
  if (log_ == nullptr) throw std::invalid_argument("there is no log to read events from");
  if (end > log_->size())
    throw std::out_of_range("position " + std::to_string(end) + " is past the log's end");
  if (begin < log_->first()) throw std::out_of_range("events that were not read yet were forgotten");
}

void PairIndex::read_links(int64_t end) {
  check_range(num_pair_events_, end);
  if (links_ == nullptr) links_ = std::make_shared<PairLinks>(*log_, shard_);
  links_->read_upto(end);
  if (end > num_pair_events_ && pairs_.first() < links_->first())
    throw std::out_of_range("pairs of events before position " + std::to_string(links_->first()) +
                            " were forgotten");
}

/// 2 for the first event of its pair, 1 for a later one at the time of the first one, else 0. `found` has
/// those of the events from num_pair_events() on.
uint8_t PairIndex::novelty(eid_t eid, const uint8_t* found) const {
  const eid_t before = links_->before(eid);
  if (before < pairs_.first()) return 2;
  if (log_->clocks()[before] != log_->clocks()[eid]) return 0;
  return before < num_pair_events_ ? first_meetings_.at(before) : found[before - num_pair_events_] > 0;
}

/// Adds the next events by their `novelty`.
void PairIndex::mark(const uint8_t* is_first, int64_t num) {
  for (int64_t size; num > 0; num -= size, is_first += size, num_pair_events_ += size) {
    size = std::min(num, pairs_.room());
    uint64_t first = 0, met = 0;
    for (int64_t i = 0; i < size; ++i) {
      first |= uint64_t{is_first[i] == 2} << i;
      met |= uint64_t{is_first[i] > 0} << i;
    }
    pairs_.append(first, size);
    first_meetings_.append(met, size);
  }
}

void PairIndex::see_type(node_t v, int64_t type) {
  const auto of = static_cast<std::size_t>(type);
  if (type_.of(v) >= 0) return;
  if (of >= node_of_type_.size()) {
    node_of_type_.resize(of + 1);
    first_of_type_.resize(of + 1);
  }
  type_.set(v, type);
  rank_.set(v, static_cast<int64_t>(node_of_type_[of].size()));
  node_of_type_[of].push_back(v);
  first_of_type_[of].push_back(size_);
}

void PairIndex::types(const node_t* nodes, int64_t n, int64_t* out) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::transform(nodes, nodes + n, out, [&](node_t v) { return type_.of(v); });
}

PairIndex::Pool PairIndex::pool_of(node_t positive) const {
  const int64_t type = type_.of(positive);
  if (type < 0) return everyone();
  const auto of = static_cast<std::size_t>(type);
  return {&node_of_type_[of], &first_of_type_[of], type};
}

int64_t PairIndex::rank_in(const Pool& pool, node_t v) const {
  if (pool.type < 0) return destinations_.rank.of(v);
  return type_.of(v) == pool.type ? rank_.of(v) : -1;
}

/// The destinations known before `known_before` that a row may get: all but its positive, unless they may
/// collide.
PairIndex::Choices PairIndex::choices(const Request& q, const Pool& pool, int64_t row, eid_t known_before,
                                      uint64_t draw) const {
  const int64_t known = count_before(*pool.first, known_before);
  const int64_t positive = q.collide ? -1 : rank_in(pool, q.dst[row]);
  const bool skips = positive >= 0 && positive < known;
  return {pool.node, skips ? positive : known, known - (skips ? 1 : 0), draw};
}

/// Those known before its cut, else before the limit, else of any type; none are left if `num` is 0.
PairIndex::Choices PairIndex::choices(const Request& q, int64_t row) const {
  const Pool pool = pool_of(q.dst[row]);
  Choices found = choices(q, pool, row, q.cut[row], kAtCut);
  if (found.num == 0) found = choices(q, pool, row, q.limit, kAtLimit);
  if (found.num == 0 && has_types_) found = choices(q, everyone(), row, q.limit, kOtherType);
  return found;
}

node_t PairIndex::any_source(const Request& q, int64_t row, int64_t slot) const {
  const auto src_of = [&](int64_t i) { return log_->src()[pairs_.nth(i)]; };
  const int64_t i = any_of_range(q.key, slot, kSource, 0, pairs_.num_before(q.limit),
                                 [&](int64_t p) { return src_of(p) != q.dst[row]; });
  if (i >= 0) return src_of(i);
  throw std::invalid_argument(
      "the event " + std::to_string(q.src[row]) + " -> " + std::to_string(q.dst[row]) +
      " has no negative: no other node is known among the first " + std::to_string(q.limit) + " events");
}

node_t PairIndex::draw(const Request& q, const Choices& from, int64_t row, int64_t slot) const {
  if (from.num == 0) return any_source(q, row, slot);
  const int64_t i = random_below(q.key, static_cast<uint64_t>(slot), from.draw, from.num);
  return (*from.node)[static_cast<std::size_t>(i + (i >= from.skipped))];
}

int64_t PairIndex::draw_destinations(const Request& q, node_t* out_dst) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  int64_t fallbacks = 0;
  for (int64_t row = 0; row < q.size; ++row) {
    const Choices from = choices(q, row);
    for (int64_t slot = row * q.num; slot < (row + 1) * q.num; ++slot) {
      const bool is_drawn = q.mask == nullptr || q.mask[slot];
      out_dst[slot] = is_drawn ? draw(q, from, row, slot) : q.dst[row];
    }
    fallbacks += from.draw == kAtCut ? 0 : q.num;
  }
  return fallbacks;
}

/// An eligible pair before number `end`, or -1. A few random tries first usually avoid the scan; the
/// scan covers all eligible pairs, so the result is uniform.
int64_t PairIndex::draw_pair(const Request& q, const Eligible& pairs, int64_t end, int64_t slot) const {
  const int64_t begin = pairs.begin;
  const auto eligible = [&](int64_t i) {
    return !pairs.positives.contains(pair(i)) && (q.replace || !pairs.used.contains(pair(i)));
  };
  for (uint64_t attempt = 0; begin < end && attempt < kPairTries; ++attempt) {
    const int64_t i =
        begin + random_below(q.key, static_cast<uint64_t>(slot), kPairTry + attempt, end - begin);
    if (eligible(i)) return i;
  }
  return any_of_range(q.key, slot, kPairScan, begin, end, eligible);
}

/// Fills a slot with a pair, added to `used` if pairs must be unique; or with a destination, returning
/// false.
bool PairIndex::fill_pair(const Request& q, int64_t slot, Eligible& pairs, node_t* out_src,
                          node_t* out_dst) const {
  const int64_t row = slot / q.num;
  const int64_t i = draw_pair(q, pairs, pairs_.num_before(q.cut[row]), slot);
  if (i < 0) {
    out_src[slot] = q.src[row];
    out_dst[slot] = draw(q, choices(q, row), row, slot);
    return false;
  }
  const eid_t first = pairs_.nth(i);
  out_src[slot] = log_->src()[first];
  out_dst[slot] = log_->dst()[first];
  if (!q.replace) pairs.used.insert(pair(i));
  return true;
}

int64_t PairIndex::draw_pairs(const Request& q, node_t* out_src, node_t* out_dst) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  Eligible pairs{pairs_.num_before(q.pairs_from), KeySet(q.size), KeySet()};
  for (int64_t row = 0; row < q.size; ++row) pairs.positives.insert(pair_key(q.src[row], q.dst[row]));
  int64_t fallbacks = 0;
  for (int64_t draw = 0; draw < q.num; ++draw) {
    pairs.used = KeySet(q.replace ? 0 : q.size);
    for (int64_t row = 0; row < q.size; ++row) {
      fallbacks += !fill_pair(q, row * q.num + draw, pairs, out_src, out_dst);
    }
  }
  return fallbacks;
}

void PairIndex::draw_lists(const Request& q, const node_t* hard, int64_t num_hard, node_t* out_dst,
                           float* out_log_q) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const int64_t width = q.num + num_hard;
  std::fill_n(out_log_q, q.size * width, -std::numeric_limits<float>::infinity());
  std::vector<int64_t> places, taken;
  for (int64_t row = 0; row < q.size; ++row) {
    node_t* const dst = out_dst + row * width;
    float* const log_q = out_log_q + row * width;
    std::fill_n(dst, width, q.dst[row]);
    const Pool pool = pool_of(q.dst[row]);
    const int64_t known = count_before(*pool.first, q.cut[row]);
    taken.clear();
    const auto take = [&](node_t node) {
      const int64_t rank = rank_in(pool, node);
      if (rank >= 0 && rank < known) taken.push_back(rank);
    };
    take(q.dst[row]);
    first_places(hard + row * num_hard, num_hard, q.dst[row], places);
    for (const int64_t i : places) {
      if (pool.type >= 0 && type_.of(hard[row * num_hard + i]) != pool.type) continue;
      dst[q.num + i] = hard[row * num_hard + i];
      log_q[q.num + i] = 0;
      take(dst[q.num + i]);
    }
    // each in order of rank, as the number of eligible destinations before it
    std::sort(taken.begin(), taken.end());
    for (std::size_t i = 0; i < taken.size(); ++i) taken[i] -= static_cast<int64_t>(i);
    const int64_t choices = known - static_cast<int64_t>(taken.size()), num = std::min(q.num, choices);
    KeySet drawn(num);
    uint64_t draw = 0;
    for (int64_t i = 0; i < num; ++i) {
      int64_t chosen;
      do {
        chosen = random_below(q.key, static_cast<uint64_t>(row), draw++, choices);
      } while (!drawn.insert(static_cast<uint64_t>(chosen)));
      const int64_t rank = chosen + (std::upper_bound(taken.begin(), taken.end(), chosen) - taken.begin());
      dst[i] = (*pool.node)[static_cast<std::size_t>(rank)];
      log_q[i] = static_cast<float>(std::log(static_cast<double>(choices) / static_cast<double>(num)));
    }
  }
}

}  // namespace tgflow
