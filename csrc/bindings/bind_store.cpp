#include <memory>

#include "bindings.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::Direction;
using tgflow::StoreMemory;
using tgflow::StoreStats;
using tgflow::TemporalGraph;
using tgflow::TierStats;

void bind_store(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::enum_<Direction>(m, "Direction")
      .value("undirected", Direction::kUndirected)
      .value("directed", Direction::kDirected)
      .value("bipartite", Direction::kBipartite);
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
  py::class_<TemporalGraph>(m, "TemporalGraph")
      .def(py::init([](Direction direction, int64_t device_budget) {
             StoreMemory memory;
             memory.device_budget = device_budget;
             return std::make_unique<TemporalGraph>(direction, memory);
           }),
           py::arg("direction"), py::arg("device_budget"))
      .def(
          "check",
          [](TemporalGraph& graph, address_t src, address_t dst, address_t t, address_t label, int64_t size,
             bool may_be_late) { graph.check(events_at(src, dst, t, label, size), may_be_late); },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), py::arg("size"),
          py::arg("may_be_late"), no_gil)
      .def(
          "append",
          [](TemporalGraph& graph, address_t src, address_t dst, address_t t, address_t label, int64_t size,
             bool may_be_late) { return graph.append(events_at(src, dst, t, label, size), may_be_late); },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), py::arg("size"),
          py::arg("may_be_late"), no_gil)
      .def(
          "record",
          [](TemporalGraph& graph, address_t src, address_t dst, address_t t, address_t label, int64_t size) {
            return graph.record(events_at(src, dst, t, label, size));
          },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), py::arg("size"), no_gil)
      .def("check_types", &TemporalGraph::check_types)
      .def(
          "remove",
          [](TemporalGraph& graph, address_t eid, int64_t size) {
            return graph.remove(at<const int64_t>(eid), size);
          },
          py::arg("eid"), py::arg("size"), no_gil)
      .def("remove_pair", &TemporalGraph::remove_pair, py::arg("src"), py::arg("dst"), no_gil)
      .def("remove_node", &TemporalGraph::remove_node, py::arg("v"), no_gil)
      .def("retain", &TemporalGraph::retain, py::arg("min_t"), py::arg("max_count"), no_gil)
      .def("compact", &TemporalGraph::compact, no_gil)
      .def("move_down", &TemporalGraph::move_down, py::arg("bytes"), no_gil)
      .def_property_readonly("log", &TemporalGraph::log, py::return_value_policy::reference_internal)
      .def_property_readonly("position", [](TemporalGraph& graph) { return graph.store().position(); })
      .def("stats", &TemporalGraph::stats, no_gil);
}
