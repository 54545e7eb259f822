#include "bindings.hpp"
#include "tgflow/sampling.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::TemporalGraph;

namespace {

Queries queries_at(address_t nodes, address_t t, address_t before, int64_t before_all, int64_t size) {
  return {at<const int64_t>(nodes), at<const int64_t>(t), at<const int64_t>(before), before_all, size};
}

NeighborRows rows_at(address_t nodes, address_t t, address_t eid, address_t count, int64_t k) {
  return {at<int64_t>(nodes), at<int64_t>(t), at<int64_t>(eid), at<int32_t>(count), k};
}

}  // namespace

void bind_sampling(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  m.def(
      "recent_neighbors",
      [](TemporalGraph& graph, address_t nodes, address_t t, address_t before, int64_t before_all,
         int64_t size, int64_t k, address_t out_nodes, address_t out_t, address_t out_eid,
         address_t out_count) {
        recent_neighbors(graph.store(), queries_at(nodes, t, before, before_all, size),
                         rows_at(out_nodes, out_t, out_eid, out_count, k));
      },
      py::arg("graph"), py::arg("nodes"), py::arg("t"), py::arg("before"), py::arg("before_all"),
      py::arg("size"), py::arg("k"), py::arg("out_nodes"), py::arg("out_t"), py::arg("out_eid"),
      py::arg("out_count"), no_gil);
  m.def(
      "uniform_neighbors",
      [](TemporalGraph& graph, address_t nodes, address_t t, address_t before, int64_t before_all,
         int64_t size, int64_t k, uint64_t key, address_t out_nodes, address_t out_t, address_t out_eid,
         address_t out_count) {
        uniform_neighbors(graph.store(), queries_at(nodes, t, before, before_all, size), key,
                          rows_at(out_nodes, out_t, out_eid, out_count, k));
      },
      py::arg("graph"), py::arg("nodes"), py::arg("t"), py::arg("before"), py::arg("before_all"),
      py::arg("size"), py::arg("k"), py::arg("key"), py::arg("out_nodes"), py::arg("out_t"),
      py::arg("out_eid"), py::arg("out_count"), no_gil);
}
