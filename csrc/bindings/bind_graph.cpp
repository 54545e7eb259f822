#include <pybind11/numpy.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/sampling.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::Direction;
using tgflow::kParts;
using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::Sampler;
using tgflow::Shard;
using tgflow::StoreMemory;
using tgflow::Strategy;
using tgflow::TemporalGraph;

namespace bindings::graph {

using tgflow::EventLog;

py::object column(const py::object& self, const int64_t* data, int64_t start, int64_t stop) {
  return py::array_t<int64_t>(stop - start, data + start, self);  // a view that keeps the log alive
}

py::tuple columns(const py::object& self, int64_t start, int64_t stop) {
  const EventLog& log = self.cast<const EventLog&>();
  check_number("stop", stop, 0, log.size());
  check_number("start", start, log.first(), stop);
  py::object relation = py::none();
  if (log.has_relation()) relation = column(self, log.relation(), start, stop);
  return py::make_tuple(column(self, log.src(), start, stop), column(self, log.dst(), start, stop),
                        column(self, log.t(), start, stop), relation);
}

/// The bytes of a column beside a log that the core does not read.
class GrowingBytes {
 public:
  GrowingBytes(const EventLog& log, int64_t item_bytes)
      : bytes_((check_number("item_bytes", item_bytes, 1, 8), tgflow::kMaxEvents * item_bytes), log.disk()) {}

  static py::array_t<uint8_t> grow(const py::object& self, int64_t size) {
    auto& held = self.cast<GrowingBytes&>();
    held.bytes_.grow(size);
    held.size_ = std::max(held.size_, size);
    return py::array_t<uint8_t>(size, held.bytes_.data(), self);  // a view that keeps it alive
  }
  void drop(int64_t end) {
    check_number("end", end, 0, size_);
    bytes_.drop(end);
  }
  bool map_file(int64_t begin, int64_t end, int fd, int64_t offset) {
    check_number("end", end, 0, size_);
    check_number("begin", begin, 0, end);
    return bytes_.map_file(begin, end, fd, offset);
  }

 private:
  tgflow::ReservedArray<uint8_t> bytes_;
  int64_t size_ = 0;
};

py::tuple since(const EventLog& log, int64_t first) {
  check_number("first", first, log.first(), log.size());
  const tgflow::Since found = log.since(first);
  return py::make_tuple(found.t, found.eid);
}

void forget(EventLog& log, int64_t first, int64_t first_seen) {
  check_number("first", first, log.first(), log.size());
  check_number("first_seen", first_seen, first, log.size());
  log.forget(first, first_seen);
}

void check_eids(const EventLog& log, const TensorArg& eid) {
  const auto ids = eid.vector<const int64_t>("eid");
  log.check_eids(ids.data, ids.size);
}

void gather(const EventLog& log, const TensorArg& eid, const TensorArg& src, const TensorArg& dst,
            const TensorArg& t, const OptionalTensor& relation) {
  const auto ids = eid.vector<const int64_t>("eid");
  if (relation && !log.has_relation())
    throw py::value_error("relation must be None: the log has no relations");
  log.gather(ids.data, ids.size, src.data<int64_t>("src", {ids.size}), dst.data<int64_t>("dst", {ids.size}),
             t.data<int64_t>("t", {ids.size}), data_or_null<int64_t>(relation, "relation", {ids.size}));
}

/// In the order of `StoreCounts` of tgflow/cuda/store.py.
py::tuple stats_of(TemporalGraph& graph) {
  tgflow::StoreStats found;
  {
    const py::gil_scoped_release released;
    found = graph.stats();
  }
  py::list tiers;
  for (const tgflow::TierStats& tier : found.tiers) {
    tiers.append(py::make_tuple(tier.num_blocks, tier.num_entries, tier.capacity, tier.bytes));
  }
  return py::make_tuple(found.num_entries, found.max_blocks, found.bytes,
                        py::make_tuple(found.reads[0], found.reads[1]), tiers);
}

std::unique_ptr<TemporalGraph> make(Direction direction, int64_t device_budget, int64_t first_part,
                                    int64_t num_parts, int64_t first,
                                    const std::optional<std::string>& folder) {
  check_number("first", first, 0, tgflow::kMaxEvents);
  check_number("device_budget", device_budget, 0);
  check_number("first_part", first_part, 0, kParts - 1);
  check_number("num_parts", num_parts, 1, kParts - first_part);
  StoreMemory memory = folder ? StoreMemory::in_files(*folder) : StoreMemory{};
  memory.device_budget = device_budget;
  return std::make_unique<TemporalGraph>(direction, memory, Shard{first_part, kParts - num_parts}, first);
}

void check(TemporalGraph& graph, const TensorArg& src, const TensorArg& dst, const TensorArg& t,
           const OptionalTensor& relation, bool allow_late) {
  graph.check(events_of(src, dst, t, relation), allow_late);
}

int64_t append(TemporalGraph& graph, const TensorArg& src, const TensorArg& dst, const TensorArg& t,
               const OptionalTensor& relation, bool allow_late) {
  return graph.append(events_of(src, dst, t, relation), allow_late);
}

std::pair<int64_t, int64_t> stage(TemporalGraph& graph, const TensorArg& src, const TensorArg& dst,
                                  const TensorArg& t, const OptionalTensor& relation, bool allow_late,
                                  const OptionalTensor& rows) {
  const tgflow::Events events = events_of(src, dst, t, relation);
  const int64_t columns = relation ? 4 : 3;
  const auto largest =
      graph.stage(events, allow_late, data_or_null<int64_t>(rows, "rows", {columns, events.size}));
  return {largest.src, largest.dst};
}

int64_t remove_events(TemporalGraph& graph, const TensorArg& eid) {
  const auto ids = eid.vector<const int64_t>("eid");
  return graph.remove(ids.data, ids.size);
}

void positions(const EventLog& log, const TensorArg& t, const TensorArg& out) {
  const auto times = t.vector<const int64_t>("t");
  auto* const position = out.data<int64_t>("out", {times.size});
  for (int64_t i = 0; i < times.size; ++i) position[i] = log.position(times.data[i]);
}

int64_t retain(TemporalGraph& graph, int64_t min_t, int64_t max_count) {
  check_number("max_count", max_count, 0);
  return graph.retain(min_t, max_count);
}

constexpr int64_t kRelationWords = tgflow::kNumRelations / 64;  // one bit per relation

void sample_neighbors(TemporalGraph& graph, Strategy strategy, uint64_t key, int64_t span,
                      const OptionalTensor& relations, const TensorArg& nodes, const TensorArg& t,
                      const OptionalTensor& as_of, int64_t as_of_all, const OptionalTensor& row,
                      int64_t since, const TensorArg& out_nodes, const TensorArg& out_t,
                      const TensorArg& out_eid, const TensorArg& out_count) {
  const auto node = nodes.vector<const int64_t>("nodes");
  const int64_t size = node.size;
  auto* found = out_nodes.data<int64_t>("out.nodes", {size, "k"});
  const int64_t k = out_nodes.length(1);
  check_number("k", k, 1);
  check_number("strategy", static_cast<int64_t>(strategy), 0, static_cast<int64_t>(Strategy::kDecayed));
  check_number("span", span, 1);
  check_number("since", since, graph.log().first(), graph.log().size());
  const Sampler sampler{strategy, key, span,
                        reinterpret_cast<const uint64_t*>(
                            data_or_null<const int64_t>(relations, "relations", {kRelationWords}))};
  const Queries queries{node.data,
                        t.data<const int64_t>("t", {size}),
                        data_or_null<const int64_t>(as_of, "as_of", {size}),
                        as_of_all,
                        size,
                        data_or_null<const int64_t>(row, "row", {size}),
                        graph.log().since(since)};
  const NeighborRows rows{found, out_t.data<int64_t>("out.t", {size, k}),
                          out_eid.data<int64_t>("out.eid", {size, k}),
                          out_count.data<int32_t>("out.count", {size}), k};
  tgflow::sample_neighbors(graph.store(), queries, sampler, rows);
}

}  // namespace bindings::graph

tgflow::Events events_of(const TensorArg& src, const TensorArg& dst, const TensorArg& t,
                         const OptionalTensor& relation) {
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  return {sources.data, dst.data<const int64_t>("dst", {size}), t.data<const int64_t>("t", {size}),
          data_or_null<const int64_t>(relation, "relation", {size}), size};
}

void bind_graph(py::module_& m) {
  using namespace bindings::graph;
  py::enum_<EventLog::Column>(m, "LogColumn")
      .value("src", EventLog::Column::kSrc)
      .value("dst", EventLog::Column::kDst)
      .value("t", EventLog::Column::kT)
      .value("relation", EventLog::Column::kRelation);
  // Only its graph appends to a log.
  py::class_<EventLog>(m, "EventLog")
      .def("__len__", &EventLog::size)
      .def_property_readonly("num_nodes", &EventLog::num_nodes)
      .def_property_readonly("has_relation", &EventLog::has_relation)
      .def_property_readonly("clock", &EventLog::clock)
      .def("since", &since, "first"_a)
      .def_property_readonly("first", &EventLog::first)
      .def("forget", &forget, "first"_a, "first_seen"_a, no_gil())
      .def("position", &EventLog::position, "t"_a, no_gil())
      .def("positions", &positions, "t"_a, "out"_a, no_gil())
      .def("check_eids", &check_eids, "eid"_a, no_gil())
      .def("columns", &columns, "start"_a, "stop"_a)
      .def("map_file", &EventLog::map_file, "column"_a, "begin"_a, "end"_a, "fd"_a, "offset"_a, no_gil())
      .def("gather", &gather, "eid"_a, "src"_a, "dst"_a, "t"_a, "relation"_a, no_gil());
  py::class_<GrowingBytes>(m, "GrowingBytes")
      .def(py::init<const EventLog&, int64_t>(), "log"_a, "item_bytes"_a)
      .def("grow", &GrowingBytes::grow, "size"_a)
      .def("drop", &GrowingBytes::drop, "end"_a)
      .def("map_file", &GrowingBytes::map_file, "begin"_a, "end"_a, "fd"_a, "offset"_a, no_gil());
  py::enum_<Direction>(m, "Direction")
      .value("undirected", Direction::kUndirected)
      .value("directed", Direction::kDirected)
      .value("bipartite", Direction::kBipartite);
  py::class_<TemporalGraph>(m, "TemporalGraph")
      .def(py::init(&make), "direction"_a, "device_budget"_a, "first_part"_a, "num_parts"_a, "first"_a = 0,
           "folder"_a = std::nullopt)
      .def("check", &check, "src"_a, "dst"_a, "t"_a, "relation"_a, "allow_late"_a, no_gil())
      .def("append", &append, "src"_a, "dst"_a, "t"_a, "relation"_a, "allow_late"_a, no_gil())
      .def("stage", &stage, "src"_a, "dst"_a, "t"_a, "relation"_a, "allow_late"_a, "rows"_a, no_gil())
      .def("record", &TemporalGraph::record, no_gil())
      .def("check_relations", &TemporalGraph::check_relations)
      .def("remove", &remove_events, "eid"_a, no_gil())
      .def("remove_pair", &TemporalGraph::remove_pair, "src"_a, "dst"_a, no_gil())
      .def("retain", &retain, "min_t"_a, "max_count"_a, no_gil())
      .def("compact", &TemporalGraph::compact, no_gil())
      .def("forget", &TemporalGraph::forget, "first"_a, "log_first"_a, no_gil())
      .def_property_readonly("log", &TemporalGraph::log, py::return_value_policy::reference_internal)
      .def_property_readonly("position", [](TemporalGraph& graph) { return graph.store().position(); })
      .def("stats", &stats_of);
  py::enum_<Strategy>(m, "Strategy")
      .value("recent", Strategy::kRecent)
      .value("uniform", Strategy::kUniform)
      .value("window", Strategy::kWindow)
      .value("decayed", Strategy::kDecayed);
  m.def("sample_neighbors", &sample_neighbors, "graph"_a, "strategy"_a, "key"_a, "span"_a, "relations"_a,
        "nodes"_a, "t"_a, "as_of"_a, "as_of_all"_a, "row"_a, "since"_a, "out_nodes"_a, "out_t"_a, "out_eid"_a,
        "out_count"_a, no_gil());
}
