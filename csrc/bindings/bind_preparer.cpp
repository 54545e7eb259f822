#include <pybind11/numpy.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tgflow/preparer.hpp"
#include "tgflow/random.hpp"

using tgflow::BatchLayout;
using tgflow::BatchRequest;
using tgflow::BatchRules;
using tgflow::BatchTable;
using tgflow::EventCounts;
using tgflow::EventLog;
using tgflow::PairIndex;
using tgflow::Preparer;
using tgflow::RowTable;
using tgflow::Slab;
using tgflow::SlabPool;
using tgflow::TemporalGraph;

namespace bindings::preparer {

constexpr int64_t kMost = int64_t{1} << 31;  // limit of repeated parts of a batch

/// Wraps a Python object for code that runs without the GIL.
std::shared_ptr<py::object> kept(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

/// An allocator that calls `allocate(bytes)`, which returns a tensor of bytes; the pool's own if None.
SlabPool::Allocate calling(const py::object& allocate) {
  if (allocate.is_none()) return {};
  if (PyCallable_Check(allocate.ptr()) == 0) throw py::type_error("allocate must be callable, or None");
  return [call = kept(allocate)](int64_t bytes) -> std::shared_ptr<std::byte> {
    const py::gil_scoped_acquire gil;
    const std::shared_ptr<py::object> memory = kept((*call)(bytes));
    return {memory, TensorArg(*memory).bytes<std::byte>("allocated memory", bytes)};
  };
}

std::shared_ptr<SlabPool> new_pool(int64_t most_free, const py::object& allocate) {
  check_number("most_free", most_free, 0, kMost);
  return std::make_shared<SlabPool>(most_free, calling(allocate));
}

/// The bytes written; empty until a batch is complete, as the slab may move.
py::buffer_info bytes_of(const Slab& slab) {
  const bool is_filled = slab.is_filled();
  return {reinterpret_cast<uint8_t*>(slab.data()), static_cast<py::ssize_t>(is_filled ? slab.size() : 0)};
}

/// Adds a copy of a column, and returns its offset in bytes.
int64_t add_column(Slab& slab, const TensorArg& column) {
  const auto bytes = column.bytes<const std::byte>("column");
  slab.begin();
  const int64_t offset = slab.add<std::byte>(bytes.size);
  std::copy_n(bytes.data, bytes.size, slab.at<std::byte>(offset));
  slab.end();
  return offset;
}

std::unique_ptr<Preparer> new_preparer(const EventLog& log, const std::optional<TemporalGraph*>& graph,
                                       PairIndex& pairs, const std::optional<EventCounts*>& maybe_counts,
                                       int64_t start, int64_t batch_size, const std::vector<int64_t>& fanouts,
                                       tgflow::Strategy strategy, int64_t span, bool sees_all_before,
                                       bool with_memory, bool with_nodes, double seconds_per_tick,
                                       int64_t num_negatives, int64_t every, bool draws_pairs, int64_t cut,
                                       int64_t pairs_from, bool collide, bool replace, double half_life,
                                       bool has_float_counts) {
  EventCounts* const counts = maybe_counts.value_or(nullptr);
  check_number("start", start, 0, tgflow::kMaxEvents);
  check_number("batch_size", batch_size, 1, kMost);
  for (const int64_t k : fanouts) check_number("a fanout", k, 1, kMost);
  if (!with_nodes && !fanouts.empty())
    throw py::value_error("fanouts are of nodes, and there are to be none");
  check_number("strategy", static_cast<int64_t>(strategy), 0,
               static_cast<int64_t>(tgflow::Strategy::kDecayed));
  check_number("span", span, 1);
  check_number("num_negatives", num_negatives, 1, kMost);
  check_number("every", every, 1);
  check_number("cut", cut, -1, tgflow::kMaxEvents);
  if (!(half_life > 0)) throw py::value_error("half_life must be above 0, got " + std::to_string(half_life));
  if ((counts != nullptr && &counts->log() != &log) || (graph && &(*graph)->log() != &log)) {
    throw py::value_error("graph and counts must be of the log, got those of another");
  }
  BatchRules rules;
  rules.start = start;
  rules.batch_size = batch_size;
  rules.fanouts = fanouts;
  rules.sampler = {strategy, 0, span, nullptr};
  rules.sees_all_before = sees_all_before;
  rules.with_memory = with_memory;
  rules.with_nodes = with_nodes;
  rules.seconds_per_tick = checked_tick(seconds_per_tick);
  rules.num_negatives = num_negatives;
  rules.every = every;
  rules.draws_pairs = draws_pairs;
  rules.cut = cut;
  rules.pairs_from = pairs_from;
  rules.collide = collide;
  rules.replace = replace;
  rules.half_life = half_life;
  rules.has_float_counts = has_float_counts;
  return std::make_unique<Preparer>(log, graph.value_or(nullptr), pairs, counts, std::move(rules));
}

/// A table's rows, in `rows`; without rows, whether their ids are requested.
BatchTable table_of(const char* name, bool is_read, const OptionalTensor& x, RowTable& rows) {
  if (!x) return {is_read, nullptr};
  const auto* data = x->data<const float>(name, {"R", "D"});
  check_number("the width of a table", x->length(1), 1, kMost);
  rows = {reinterpret_cast<const std::byte*>(data), x->length(1) * static_cast<int64_t>(sizeof(float)),
          x->length(0)};
  return {true, &rows};
}

using Numbers = std::vector<int64_t>;

/// The layout as numbers: those of the batch, and of each block; see tgflow/plan/_native.py.
std::pair<Numbers, std::vector<Numbers>> numbers(const BatchLayout& b) {
  // clang-format off
  const Numbers batch{
      b.num_events, b.num_new, b.num_queries, b.num_fallbacks, b.eid, b.t, b.ends, b.row, b.counts,
      b.num_nodes, b.nodes, b.position, b.num_edges, b.num_in_blocks, b.own_row, b.edge_ids, b.edge_x, b.x,
      b.node_ids, b.node_x, b.log_q, b.query_t, b.query_position, b.words};
  // clang-format on
  std::vector<Numbers> blocks;
  for (const BatchLayout::Block& of : b.blocks)
    blocks.push_back({of.targets, of.target, of.neighbor, of.mask, of.dt, of.eid, of.edge_row});
  return {batch, blocks};
}

/// Copies of the columns eid, src, dst and t of the whole batch: [4, events].
py::array_t<int64_t> events_of(const BatchLayout& b, const Slab& slab) {
  const int64_t num = b.num_whole, dst = b.whole_ends + num * static_cast<int64_t>(sizeof(int64_t));
  py::array_t<int64_t> events({int64_t{4}, num});
  int64_t* to = events.mutable_data();
  for (const int64_t column : {b.whole_eid, b.whole_ends, dst, b.whole_t})
    to = std::copy_n(slab.at<int64_t>(column), num, to);
  return events;
}

/// A copy of which negatives of the whole batch the core drew, [events, m]; or None if all.
py::object mask_of(const BatchLayout& b, const Slab& slab, int64_t m) {
  if (b.mask < 0) return py::none();
  return py::array_t<bool>({b.num_whole, m}, slab.at<bool>(b.mask));
}

/// A batch to prepare, checked.
struct Request {
  Preparer& preparer;
  BatchRequest ask;
  RowTable edges, nodes;
  std::vector<std::pair<TensorArg, py::object>> held;  // what it refers to
};

/// Negatives of `num` events, `m` each.
tgflow::GivenNegatives given(const OptionalTensor& dst, const OptionalTensor& src,
                             const OptionalTensor& log_q, int64_t num, int64_t m) {
  if ((src || log_q) && !dst) throw py::value_error("given negatives need a negative_dst");
  const tgflow::GivenNegatives found{data_or_null<const int64_t>(dst, "negative_dst", {num, m}),
                                     data_or_null<const int64_t>(src, "negative_src", {num, m}),
                                     data_or_null<const float>(log_q, "log_q", {num, m})};
  for (const auto* nodes : {found.dst, found.src}) {
    if (nodes != nullptr) check_range("given negatives", {nodes, num * m}, 0, tgflow::kMaxNode + 1);
  }
  return found;
}

std::unique_ptr<Request> new_request(const py::object& self, uint64_t key,
                                     const std::optional<uint64_t>& slice_key,
                                     const OptionalTensor& negative_dst, const OptionalTensor& negative_src,
                                     const OptionalTensor& log_q, bool is_drawn_only, bool with_counts,
                                     int64_t begin, int64_t end, int64_t since, const OptionalTensor& only,
                                     int64_t replay_begin, int64_t num_replay, bool reads_edges,
                                     const OptionalTensor& edge_x, bool reads_nodes,
                                     const OptionalTensor& node_x, int64_t node_end, bool is_padded,
                                     const OptionalTensor& rows) {
  auto& preparer = self.cast<Preparer&>();
  const tgflow::BatchRules& rules = preparer.rules();
  check_number("end", end, 1, preparer.log().size());
  check_number("begin", begin, 0, end - 1);
  check_number("since", since, 0, begin);
  check_number("replay_begin", replay_begin, 0, begin);
  check_number("num_replay", num_replay, 0, kMost);
  check_number("node_end", node_end, 0);
  if (!is_drawn_only && !preparer.has_graph()) {
    throw py::value_error("without a graph batches are only drawn: is_drawn_only=True");
  }
  auto made = std::make_unique<Request>(Request{preparer, {}, {}, {}, {{TensorArg(), self}}});
  for (const OptionalTensor* each : {&negative_dst, &negative_src, &log_q, &only, &edge_x, &node_x, &rows}) {
    if (*each) made->held.emplace_back(**each, py::reinterpret_borrow<py::object>((*each)->object()));
  }
  BatchRequest& request = made->ask;
  request.key = key;
  request.hop_key = slice_key.value_or(key);
  request.is_drawn_only = is_drawn_only;
  request.with_counts = with_counts;
  request.begin = begin;
  request.end = end;
  request.since = preparer.log().since(since);
  int64_t num_new = end - begin;
  if (only) {
    const auto eids = only->vector<const int64_t>("only");
    request.only = eids.data;
    num_new = request.num_only = eids.size;
  }
  request.negatives = given(negative_dst, negative_src, log_q,
                            num_new + std::min(num_replay, begin - replay_begin), rules.num_negatives);
  if (!negative_dst && rules.every > 1 && (only || num_replay > 0)) {
    throw py::value_error(
        "one of every few events has negatives among new ones only, got replayed or given ones");
  }
  request.replay_begin = replay_begin;
  request.num_replay = num_replay;
  request.edge_x = is_drawn_only ? BatchTable{} : table_of("edge_x", reads_edges, edge_x, made->edges);
  request.node_x = is_drawn_only ? BatchTable{} : table_of("node_x", reads_nodes, node_x, made->nodes);
  request.node_end = node_end;
  request.is_padded = is_padded;
  if (rows) {
    const auto chosen = rows->vector<const int64_t>("rows");
    for (int64_t i = 0; i < chosen.size; ++i) {
      if (chosen.data[i] < (i == 0 ? 0 : chosen.data[i - 1] + 1)) {
        throw py::value_error("rows must be distinct and ascending from 0, got " +
                              std::to_string(chosen.data[i]) + " in place " + std::to_string(i));
      }
    }
    request.rows = chosen.data;
    request.num_rows = chosen.size;
  }
  return made;
}

/// Prepares batches one after the other, and appends to `found`: the layout of each, its events, and which
/// negatives there are. After an error it has the batches before.
void fill(Slab& slab, const std::vector<std::reference_wrapper<Request>>& requests, py::list& found) {
  py::list held;  // another thread may change the list meanwhile
  for (Request& each : requests) held.append(py::cast(&each, py::return_value_policy::reference));
  std::vector<BatchLayout> layouts;
  std::exception_ptr failure;
  {
    const py::gil_scoped_release no_gil;
    try {
      for (Request& each : requests) layouts.push_back(each.preparer.prepare(each.ask, slab));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto [batch, blocks] = numbers(layouts[i]);
    const int64_t m = requests[i].get().preparer.rules().num_negatives;
    found.append(py::make_tuple(batch, blocks, events_of(layouts[i], slab), mask_of(layouts[i], slab, m)));
  }
  if (failure) std::rethrow_exception(failure);
}

void choose_positions(int64_t begin, int64_t every, const TensorArg& out) {
  const auto is_chosen = out.vector<bool>("out");
  check_number("begin", begin, 0, tgflow::kMaxEvents);
  check_number("every", every, 1);
  for (int64_t i = 0; i < is_chosen.size; ++i) is_chosen.data[i] = tgflow::is_chosen(begin + i, every);
}

int64_t padded(int64_t rows) {
  check_number("rows", rows, 0, int64_t{1} << 60);  // its double has 64 bits
  return tgflow::padded_rows(rows);
}

}  // namespace bindings::preparer

void bind_preparer(py::module_& m) {
  using namespace bindings::preparer;
  const py::call_guard<py::gil_scoped_release> no_gil;
  m.def("choose_positions", &choose_positions, "begin"_a, "every"_a, "out"_a, no_gil);
  m.def("padded_rows", &padded, "rows"_a, no_gil);
  py::class_<SlabPool, std::shared_ptr<SlabPool>>(m, "SlabPool")
      .def(py::init(&new_pool), "most_free"_a, "allocate"_a)
      .def_property_readonly("num_used", &SlabPool::num_used)
      .def_property_readonly("num_free", &SlabPool::num_free);
  py::class_<Request>(m, "BatchRequest");
  py::class_<Slab>(m, "Slab", py::buffer_protocol())
      .def(py::init<std::shared_ptr<SlabPool>>(), "pool"_a.none(false))
      .def("add", &add_column, "column"_a)
      .def("fill", &fill, "requests"_a, "found"_a)
      .def_buffer(&bytes_of);
  py::class_<Preparer>(m, "Preparer")
      .def(py::init(&new_preparer), "log"_a, "graph"_a, "pairs"_a, "counts"_a, "start"_a, "batch_size"_a,
           "fanouts"_a, "strategy"_a, "span"_a, "sees_all_before"_a, "with_memory"_a, "with_nodes"_a,
           "seconds_per_tick"_a, "num_negatives"_a, "every"_a, "draws_pairs"_a, "cut"_a, "pairs_from"_a,
           "collide"_a, "replace"_a, "half_life"_a, "has_float_counts"_a, py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>(), py::keep_alive<1, 4>(), py::keep_alive<1, 5>())
      .def("request", &new_request, "key"_a, "slice_key"_a, "negative_dst"_a, "negative_src"_a, "log_q"_a,
           "is_drawn_only"_a, "with_counts"_a, "begin"_a, "end"_a, "since"_a, "only"_a, "replay_begin"_a,
           "num_replay"_a, "reads_edges"_a, "edge_x"_a, "reads_nodes"_a, "node_x"_a, "node_end"_a,
           "is_padded"_a, "rows"_a);
}
