#include "bindings.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::Direction;
using tgflow::StoreStats;
using tgflow::TemporalGraph;

void bind_store(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::enum_<Direction>(m, "Direction")
      .value("undirected", Direction::kUndirected)
      .value("directed", Direction::kDirected)
      .value("bipartite", Direction::kBipartite);
  py::class_<StoreStats>(m, "StoreStats")
      .def_readonly("num_entries", &StoreStats::num_entries)
      .def_readonly("num_blocks", &StoreStats::num_blocks)
      .def_readonly("capacity", &StoreStats::capacity)
      .def_readonly("max_blocks", &StoreStats::max_blocks)
      .def_readonly("bytes", &StoreStats::bytes);
  py::class_<TemporalGraph>(m, "TemporalGraph")
      .def(py::init<Direction>(), py::arg("direction"))
      .def(
          "check",
          [](TemporalGraph& graph, address_t src, address_t dst, address_t t, address_t label, int64_t size) {
            graph.check(events_at(src, dst, t, label, size));
          },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), py::arg("size"), no_gil)
      .def(
          "append",
          [](TemporalGraph& graph, address_t src, address_t dst, address_t t, address_t label, int64_t size) {
            return graph.append(events_at(src, dst, t, label, size));
          },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), py::arg("size"), no_gil)
      .def_property_readonly("log", &TemporalGraph::log, py::return_value_policy::reference_internal)
      .def_property_readonly("position", [](TemporalGraph& graph) { return graph.store().position(); })
      .def("stats", &TemporalGraph::stats, no_gil);
}
