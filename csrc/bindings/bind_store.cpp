#include <memory>

#include "bindings.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::Direction;
using tgflow::kParts;
using tgflow::Shard;
using tgflow::StoreMemory;
using tgflow::StoreStats;
using tgflow::TemporalGraph;
using tgflow::TierStats;

namespace bindings::store {

void bind_stats(py::module_& m) {
  py::class_<TierStats>(m, "TierStats")
      .def_readonly("num_blocks", &TierStats::num_blocks)
      .def_readonly("num_entries", &TierStats::num_entries)
      .def_readonly("capacity", &TierStats::capacity)
      .def_readonly("bytes", &TierStats::bytes);
  py::class_<StoreStats>(m, "StoreStats")
      .def_readonly("num_entries", &StoreStats::num_entries)
      .def_readonly("max_blocks", &StoreStats::max_blocks)
      .def_readonly("bytes", &StoreStats::bytes)
      .def_property_readonly(
          "reads", [](const StoreStats& stats) { return py::make_tuple(stats.reads[0], stats.reads[1]); })
      .def_property_readonly("device", [](const StoreStats& stats) { return stats.tiers[0]; })
      .def_property_readonly("host", [](const StoreStats& stats) { return stats.tiers[1]; });
}

std::unique_ptr<TemporalGraph> make(Direction direction, int64_t device_budget, int64_t first_part,
                                    int64_t num_parts) {
  check_number("device_budget", device_budget, 0);
  check_number("first_part", first_part, 0, kParts - 1);
  check_number("num_parts", num_parts, 1, kParts - first_part);
  StoreMemory memory;
  memory.device_budget = device_budget;
  return std::make_unique<TemporalGraph>(direction, memory, Shard{first_part, kParts - num_parts});
}

void check(TemporalGraph& graph, const TensorArg& src, const TensorArg& dst, const TensorArg& t,
           const OptionalTensor& label, bool allow_late) {
  graph.check(events_of(src, dst, t, label), allow_late);
}

int64_t append(TemporalGraph& graph, const TensorArg& src, const TensorArg& dst, const TensorArg& t,
               const OptionalTensor& label, bool allow_late) {
  return graph.append(events_of(src, dst, t, label), allow_late);
}

int64_t record(TemporalGraph& graph, const TensorArg& src, const TensorArg& dst, const TensorArg& t,
               const OptionalTensor& label) {
  const tgflow::Events events = events_of(src, dst, t, label);
  graph.check(events, true);
  return graph.record(events);
}

int64_t remove_events(TemporalGraph& graph, const TensorArg& eid) {
  const auto ids = eid.vector<const int64_t>("eid");
  return graph.remove(ids.data, ids.size);
}

int64_t retain(TemporalGraph& graph, int64_t min_t, int64_t max_count) {
  check_number("max_count", max_count, 0);
  return graph.retain(min_t, max_count);
}

void move_down(TemporalGraph& graph, int64_t bytes) {
  check_number("bytes", bytes, 0);
  graph.move_down(bytes);
}

}  // namespace bindings::store

void bind_store(py::module_& m) {
  using namespace bindings::store;
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::enum_<Direction>(m, "Direction")
      .value("undirected", Direction::kUndirected)
      .value("directed", Direction::kDirected)
      .value("bipartite", Direction::kBipartite);
  bind_stats(m);
  py::class_<TemporalGraph>(m, "TemporalGraph")
      .def(py::init(&make), py::arg("direction"), py::arg("device_budget"), py::arg("first_part"),
           py::arg("num_parts"))
      .def("check", &check, py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"),
           py::arg("allow_late"), no_gil)
      .def("append", &append, py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"),
           py::arg("allow_late"), no_gil)
      .def("record", &record, py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), no_gil)
      .def("check_types", &TemporalGraph::check_types)
      .def("remove", &remove_events, py::arg("eid"), no_gil)
      .def("remove_pair", &TemporalGraph::remove_pair, py::arg("src"), py::arg("dst"), no_gil)
      .def("remove_node", &TemporalGraph::remove_node, py::arg("v"), no_gil)
      .def("retain", &retain, py::arg("min_t"), py::arg("max_count"), no_gil)
      .def("compact", &TemporalGraph::compact, no_gil)
      .def("move_down", &move_down, py::arg("bytes"), no_gil)
      .def_property_readonly("log", &TemporalGraph::log, py::return_value_policy::reference_internal)
      .def_property_readonly("position", [](TemporalGraph& graph) { return graph.store().position(); })
      .def("stats", &TemporalGraph::stats, no_gil);
}
