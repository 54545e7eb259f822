#include "bindings.hpp"
#include "tgflow/sampling.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::Sampler;
using tgflow::Strategy;
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
  py::enum_<Strategy>(m, "Strategy")
      .value("recent", Strategy::kRecent)
      .value("uniform", Strategy::kUniform)
      .value("window", Strategy::kWindow)
      .value("decayed", Strategy::kDecayed);
  py::class_<Sampler>(m, "Sampler")
      .def(py::init([](Strategy strategy, uint64_t key, int64_t span, address_t types) {
             return Sampler{strategy, key, span, at<const uint64_t>(types)};
           }),
           py::arg("strategy"), py::arg("key"), py::arg("span"), py::arg("types"))
      .def_readonly("strategy", &Sampler::strategy)
      .def_readonly("key", &Sampler::key)
      .def_readonly("span", &Sampler::span)
      .def_property_readonly(
          "types", [](const Sampler& sampler) { return reinterpret_cast<address_t>(sampler.types); });
  m.def(
      "sample_neighbors",
      [](TemporalGraph& graph, const Sampler& sampler, address_t nodes, address_t t, address_t before,
         int64_t before_all, int64_t size, int64_t k, address_t out_nodes, address_t out_t, address_t out_eid,
         address_t out_count) {
        sample_neighbors(graph.store(), queries_at(nodes, t, before, before_all, size), sampler,
                         rows_at(out_nodes, out_t, out_eid, out_count, k));
      },
      py::arg("graph"), py::arg("sampler"), py::arg("nodes"), py::arg("t"), py::arg("before"),
      py::arg("before_all"), py::arg("size"), py::arg("k"), py::arg("out_nodes"), py::arg("out_t"),
      py::arg("out_eid"), py::arg("out_count"), py::call_guard<py::gil_scoped_release>());
}
