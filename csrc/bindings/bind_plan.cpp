#include <pybind11/numpy.h>

#include <vector>

#include "bindings.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/frontier.hpp"
#include "tgflow/pair_index.hpp"
#include "tgflow/random.hpp"
#include "tgflow/replay.hpp"

namespace bindings::plan {

using tgflow::PairIndex;

void append(PairIndex& index, const TensorArg& src, const TensorArg& dst, const OptionalTensor& type) {
  const auto sources = src.vector<const tgflow::node_t>("src");
  const Span<const tgflow::node_t> targets{dst.data<const tgflow::node_t>("dst", {sources.size}),
                                           sources.size};
  check_range("src", sources, 0, tgflow::kMaxNode + 1);
  check_range("dst", targets, 0, tgflow::kMaxNode + 1);
  const auto* types = data_or_null<const int64_t>(type, "type", {sources.size});
  if (types != nullptr) check_range("type", {types, sources.size}, 0, PairIndex::kNumTypes);
  index.append(sources.data, targets.data, types, sources.size);
}

void read(PairIndex& index, int64_t end, const OptionalTensor& type) {
  check_number("end", end, index.size(), tgflow::kMaxEvents);
  const auto* types = data_or_null<const int64_t>(type, "type", {end - index.size()});
  if (types != nullptr) check_range("type", {types, end - index.size()}, 0, PairIndex::kNumTypes);
  index.read(end, types);
}

PairIndex* new_pairs(const std::optional<tgflow::EventLog*>& log, int64_t first_part, int64_t num_parts,
                     int64_t first) {
  check_number("first_part", first_part, 0, tgflow::kParts - 1);
  check_number("num_parts", num_parts, 1, tgflow::kParts - first_part);
  check_number("first", first, 0, log ? (*log)->size() : 0);
  return new PairIndex(log.value_or(nullptr), {first_part, tgflow::kParts - num_parts}, first);
}

void read_pairs(PairIndex& index, int64_t end) {
  check_number("end", end, 0, tgflow::kMaxEvents);
  index.read_pairs(end);
}

void find_pairs(PairIndex& index, int64_t end, const TensorArg& is_first) {
  check_number("end", end, index.num_pair_events(), tgflow::kMaxEvents);
  index.find_pairs(end, is_first.data<uint8_t>("is_first", {end - index.num_pair_events()}));
}

void mark_pairs(PairIndex& index, int64_t end, const TensorArg& is_first) {
  check_number("end", end, index.num_pair_events(), tgflow::kMaxEvents);
  index.mark_pairs(end, is_first.data<const uint8_t>("is_first", {end - index.num_pair_events()}));
}

void types(const PairIndex& index, const TensorArg& nodes, const TensorArg& out) {
  const auto asked = nodes.vector<const tgflow::node_t>("nodes");
  check_range("nodes", asked, 0, tgflow::kMaxNode + 1);
  index.types(asked.data, asked.size, out.data<int64_t>("out", {asked.size}));
}

void destinations(const PairIndex& index, int64_t before, const TensorArg& out) {
  check_number("before", before, 0, index.size());  // later events may add others
  index.destinations(before, out.data<tgflow::node_t>("out", {index.num_destinations(before)}));
}

py::array_t<bool> first_meetings(PairIndex& index, int64_t begin, int64_t end) {
  check_number("begin", begin, index.first(), end);
  std::vector<char> found;
  const auto is_first = [&] { return reinterpret_cast<bool*>(found.data()); };
  {
    const py::gil_scoped_release no_gil;
    index.read_pairs(end);
    found.resize(static_cast<std::size_t>(end - begin));
    index.first_meetings(begin, end, is_first());
  }
  return py::array_t<bool>(static_cast<py::ssize_t>(found.size()), is_first());
}

std::vector<tgflow::node_t> destinations_of(PairIndex& index, int64_t src, int64_t before) {
  check_number("src", src, 0, tgflow::kMaxNode);
  check_number("before", before, 0, index.num_pair_events());
  return index.destinations_of(src, before);
}

/// The request for negatives that fill `out`, [size, num].
PairIndex::Request request(const PairIndex& index, uint64_t key, const TensorArg& src, const TensorArg& dst,
                           const TensorArg& cut, int64_t limit, const TensorArg& out) {
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  const Span<const int64_t> targets{dst.data<const int64_t>("dst", {size}), size};
  check_range("src", sources, 0, tgflow::kMaxNode + 1);
  check_range("dst", targets, 0, tgflow::kMaxNode + 1);
  out.data<tgflow::node_t>("out_dst", {size, "m"});
  check_number("limit", limit, 0, index.size());
  return {key,  sources.data,  targets.data, cut.data<const int64_t>("cut", {size}),
          size, out.length(1), limit};
}

int64_t draw_destinations(const PairIndex& index, uint64_t key, const TensorArg& src, const TensorArg& dst,
                          const TensorArg& cut, int64_t limit, bool collide, const OptionalTensor& mask,
                          const TensorArg& out_dst) {
  PairIndex::Request q = request(index, key, src, dst, cut, limit, out_dst);
  q.collide = collide;
  q.mask = data_or_null<const bool>(mask, "mask", {q.size, q.num});
  return index.draw_destinations(q, out_dst.data<tgflow::node_t>("out_dst", {q.size, q.num}));
}

int64_t draw_pairs(const PairIndex& index, uint64_t key, const TensorArg& src, const TensorArg& dst,
                   const TensorArg& cut, int64_t limit, int64_t pairs_from, bool replace,
                   const TensorArg& out_src, const TensorArg& out_dst) {
  PairIndex::Request q = request(index, key, src, dst, cut, limit, out_dst);
  check_number("limit", limit, 0, index.num_pair_events());
  q.pairs_from = pairs_from;
  q.replace = replace;
  return index.draw_pairs(q, out_src.data<tgflow::node_t>("out_src", {q.size, q.num}),
                          out_dst.data<tgflow::node_t>("out_dst", {q.size, q.num}));
}

void draw_lists(const PairIndex& index, uint64_t key, const TensorArg& src, const TensorArg& dst,
                const TensorArg& cut, int64_t limit, const TensorArg& hard, const TensorArg& out_dst,
                const TensorArg& out_log_q) {
  PairIndex::Request q = request(index, key, src, dst, cut, limit, out_dst);
  const auto* hard_nodes = hard.data<const tgflow::node_t>("hard", {q.size, "h"});
  const int64_t width = q.num, num_hard = hard.length(1);
  check_number("the number of hard ones", num_hard, 0, width);
  q.num = width - num_hard;
  index.draw_lists(q, hard_nodes, num_hard, out_dst.data<tgflow::node_t>("out_dst", {q.size, width}),
                   out_log_q.data<float>("out_log_q", {q.size, width}));
}

tgflow::FrontierIn queries(const TensorArg& node, const TensorArg& t, const OptionalTensor& position) {
  const auto nodes = node.vector<const tgflow::node_t>("node");
  return {nodes.data, t.data<const tgflow::tick_t>("t", {nodes.size}),
          data_or_null<const int64_t>(position, "position", {nodes.size}), nodes.size};
}

tgflow::FrontierOut room(const TensorArg& node, const OptionalTensor& t, const OptionalTensor& position,
                         int64_t size) {
  return {node.data<tgflow::node_t>("out_node", {size}), data_or_null<tgflow::tick_t>(t, "out_t", {size}),
          data_or_null<int64_t>(position, "out_position", {size})};
}

void check_positions(const OptionalTensor& position, const OptionalTensor& out_position) {
  if (out_position && !position) {
    throw py::value_error("out_position must be None: the queries have no positions");
  }
}

int64_t unique_queries(const TensorArg& node, const TensorArg& t, const OptionalTensor& position,
                       const TensorArg& out_node, const OptionalTensor& out_t,
                       const OptionalTensor& out_position, const TensorArg& row) {
  check_positions(position, out_position);
  const tgflow::FrontierIn in = queries(node, t, position);
  tgflow::RowIndex index;
  return tgflow::unique_queries(in, room(out_node, out_t, out_position, in.size),
                                row.data<int64_t>("row", {in.size}), index);
}

int64_t expand_frontier(const TensorArg& node, const TensorArg& t, const OptionalTensor& position,
                        const TensorArg& neighbor_node, const TensorArg& neighbor_t, double seconds_per_tick,
                        const TensorArg& out_node, const OptionalTensor& out_t,
                        const OptionalTensor& out_position, const TensorArg& target,
                        const TensorArg& neighbor, const TensorArg& mask, const TensorArg& dt) {
  check_positions(position, out_position);
  const tgflow::FrontierIn targets = queries(node, t, position);
  const int64_t n = targets.size;
  const auto* nodes = neighbor_node.data<const tgflow::node_t>("neighbor_node", {n, "k"});
  const int64_t k = neighbor_node.length(1);
  const auto* times = neighbor_t.data<const tgflow::tick_t>("neighbor_t", {n, k});
  tgflow::RowIndex index;
  return tgflow::expand_frontier(
      targets, {nodes, times, k}, checked_tick(seconds_per_tick),
      room(out_node, out_t, out_position, product(n, k + 1)),
      {target.data<int64_t>("target", {n}), neighbor.data<int64_t>("neighbor", {n, k}),
       mask.data<bool>("mask", {n, k}), dt.data<float>("dt", {n, k})},
      index);
}

std::vector<int64_t> unique_events(const std::vector<TensorArg>& eids, const std::vector<TensorArg>& rows,
                                   const TensorArg& out) {
  const auto num_lists = static_cast<int64_t>(eids.size());
  check_number("the number of rows", static_cast<int64_t>(rows.size()), num_lists, num_lists);
  std::vector<tgflow::EventList> lists;
  int64_t total = 1;
  for (std::size_t i = 0; i < eids.size(); ++i) {
    const auto eid = eids[i].elements<const tgflow::eid_t>("eid");
    const auto row = rows[i].elements<int64_t>("row");
    check_number("the length of row", row.size, eid.size, eid.size);
    lists.push_back({eid.data, eid.size, row.data});
    total += eid.size;
  }
  tgflow::RowIndex index;
  return tgflow::unique_events(lists, out.data<tgflow::eid_t>("out", {total}), index);
}

int64_t draw_replay(int64_t begin, int64_t end, double half_life, uint64_t key, const TensorArg& out) {
  const auto room = out.vector<tgflow::eid_t>("out");
  check_number("end", end, 0, tgflow::kMaxEvents);
  check_number("begin", begin, 0, end);
  if (!(half_life > 0)) throw py::value_error("half_life must be above 0, got " + std::to_string(half_life));
  return tgflow::draw_replay({begin, end, half_life}, key, room.size, room.data);
}

void bind_pair_index(py::module_& m) {
  py::class_<PairIndex>(m, "PairIndex")
      .def(py::init(&new_pairs), "log"_a = std::nullopt, "first_part"_a = 0, "num_parts"_a = tgflow::kParts,
           "first"_a = 0, py::keep_alive<1, 2>())
      .def(py::init([](PairIndex& other, int64_t first) {
             check_number("first", first, other.first(), tgflow::kMaxEvents);
             return new PairIndex(other, first);
           }),
           "other"_a, "first"_a, py::keep_alive<1, 2>())
      .def("__len__", &PairIndex::size)
      .def("append", &append, "src"_a, "dst"_a, "type"_a = std::nullopt, no_gil())
      .def("read", &read, "end"_a, "type"_a = std::nullopt, no_gil())
      .def("read_pairs", &read_pairs, "end"_a, no_gil())
      .def("find_pairs", &find_pairs, "end"_a, "is_first"_a, no_gil())
      .def("mark_pairs", &mark_pairs, "end"_a, "is_first"_a, no_gil())
      .def("first_meetings", &first_meetings, "begin"_a, "end"_a)
      .def_property_readonly("num_pair_events", &PairIndex::num_pair_events)
      .def("types", &types, "nodes"_a, "out"_a, no_gil())
      .def("num_destinations", &PairIndex::num_destinations, "before"_a)
      .def("num_pairs", &PairIndex::num_pairs, "before"_a)
      .def("destinations", &destinations, "before"_a, "out"_a, no_gil())
      .def("destinations_of", &destinations_of, "src"_a, "before"_a, no_gil())
      .def("draw_destinations", &draw_destinations, "key"_a, "src"_a, "dst"_a, "cut"_a, "limit"_a,
           "collide"_a, "mask"_a, "out_dst"_a, no_gil())
      .def("draw_pairs", &draw_pairs, "key"_a, "src"_a, "dst"_a, "cut"_a, "limit"_a, "pairs_from"_a,
           "replace"_a, "out_src"_a, "out_dst"_a, no_gil())
      .def("draw_lists", &draw_lists, "key"_a, "src"_a, "dst"_a, "cut"_a, "limit"_a, "hard"_a, "out_dst"_a,
           "out_log_q"_a, no_gil());
}

void bind_frontier(py::module_& m) {
  m.def("unique_queries", &unique_queries, "node"_a, "t"_a, "position"_a, "out_node"_a, "out_t"_a,
        "out_position"_a, "row"_a, no_gil());
  m.def("expand_frontier", &expand_frontier, "node"_a, "t"_a, "position"_a, "neighbor_node"_a, "neighbor_t"_a,
        "seconds_per_tick"_a, "out_node"_a, "out_t"_a, "out_position"_a, "target"_a, "neighbor"_a, "mask"_a,
        "dt"_a, no_gil());
  m.def("unique_events", &unique_events, "eids"_a, "rows"_a, "out"_a, no_gil());
}

/// Splitmix64 steps over integers of any size, modulo 2^64.
uint64_t derive_key(const py::args& words) {
  uint64_t state = words.size();
  for (const py::handle word : words) {
    const uint64_t bits = PyLong_AsUnsignedLongLongMask(word.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    state = tgflow::mix64((state + 0x9e3779b97f4a7c15ULL) ^ bits);
  }
  return state;
}

}  // namespace bindings::plan

void bind_plan(py::module_& m) {
  using namespace bindings::plan;
  bind_pair_index(m);
  bind_frontier(m);
  m.def("draw_replay", &draw_replay, "begin"_a, "end"_a, "half_life"_a, "key"_a, "out"_a, no_gil());
  m.def("derive_key", &derive_key);
}
