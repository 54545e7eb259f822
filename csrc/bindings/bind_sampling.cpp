#include "bindings.hpp"
#include "tgflow/sampling.hpp"
#include "tgflow/temporal_graph.hpp"

using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::Sampler;
using tgflow::Strategy;
using tgflow::TemporalGraph;

namespace bindings::sampling {

constexpr int64_t kTypeWords = (1 << 16) / 64;  // a bit for each event type

void sample_neighbors(TemporalGraph& graph, Strategy strategy, uint64_t key, int64_t span,
                      const OptionalTensor& types, const TensorArg& nodes, const TensorArg& t,
                      const OptionalTensor& as_of, int64_t as_of_all, const OptionalTensor& row,
                      const TensorArg& out_nodes, const TensorArg& out_t, const TensorArg& out_eid,
                      const TensorArg& out_count) {
  const auto node = nodes.vector<const int64_t>("nodes");
  const int64_t size = node.size;
  auto* found = out_nodes.data<int64_t>("out.nodes", {size, "k"});
  const int64_t k = out_nodes.length(1);
  check_number("k", k, 1);
  check_number("strategy", static_cast<int64_t>(strategy), 0, static_cast<int64_t>(Strategy::kDecayed));
  check_number("span", span, 1);
  const Sampler sampler{
      strategy, key, span,
      reinterpret_cast<const uint64_t*>(data_or_null<const int64_t>(types, "types", {kTypeWords}))};
  const Queries queries{node.data,
                        t.data<const int64_t>("t", {size}),
                        data_or_null<const int64_t>(as_of, "as_of", {size}),
                        as_of_all,
                        size,
                        data_or_null<const int64_t>(row, "row", {size})};
  const NeighborRows rows{found, out_t.data<int64_t>("out.t", {size, k}),
                          out_eid.data<int64_t>("out.eid", {size, k}),
                          out_count.data<int32_t>("out.count", {size}), k};
  tgflow::sample_neighbors(graph.store(), queries, sampler, rows);
}

}  // namespace bindings::sampling

void bind_sampling(py::module_& m) {
  using namespace bindings::sampling;
  py::enum_<Strategy>(m, "Strategy")
      .value("recent", Strategy::kRecent)
      .value("uniform", Strategy::kUniform)
      .value("window", Strategy::kWindow)
      .value("decayed", Strategy::kDecayed);
  m.def("sample_neighbors", &sample_neighbors, py::arg("graph"), py::arg("strategy"), py::arg("key"),
        py::arg("span"), py::arg("types"), py::arg("nodes"), py::arg("t"), py::arg("as_of"),
        py::arg("as_of_all"), py::arg("row"), py::arg("out_nodes"), py::arg("out_t"), py::arg("out_eid"),
        py::arg("out_count"), py::call_guard<py::gil_scoped_release>());
}
