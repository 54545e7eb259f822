// The baseline as Python sees it, in the core of a development build.
#include "bindings.hpp"
#include "static_csr.hpp"
#include "tgflow/sampling.hpp"

using tgflow::Direction;
using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::StaticCsr;

namespace {

using no_gil = py::call_guard<py::gil_scoped_release>;

tgflow::Events events(const TensorArg& src, const TensorArg& dst, const TensorArg& t) {
  const auto sources = src.vector<const int64_t>("src");
  const auto* targets = dst.data<const int64_t>("dst", {sources.size});
  check_range("src", sources, 0, tgflow::kMaxNode + 1);
  check_range("dst", {targets, sources.size}, 0, tgflow::kMaxNode + 1);
  return {sources.data, targets, t.data<const int64_t>("t", {sources.size}), nullptr, sources.size};
}

void build(StaticCsr& csr, const TensorArg& src, const TensorArg& dst, const TensorArg& t) {
  csr.build(events(src, dst, t));
}

void insert(StaticCsr& csr, const TensorArg& src, const TensorArg& dst, const TensorArg& t) {
  csr.insert(events(src, dst, t));
}

/// Neighbors `[Q, k]` of queries; drawn by `key`, or the latest without one.
void sample(const StaticCsr& csr, const TensorArg& nodes, const TensorArg& t, int64_t before,
            std::optional<uint64_t> key, const TensorArg& out_nodes, const TensorArg& out_t,
            const TensorArg& out_eid, const TensorArg& out_count) {
  const auto v = nodes.vector<const int64_t>("nodes");
  const Queries queries{v.data, t.data<const int64_t>("t", {v.size}), nullptr, before, v.size};
  auto* const found = out_nodes.data<int64_t>("out_nodes", {v.size, "k"});
  const int64_t k = out_nodes.length(1);
  const NeighborRows rows{found, out_t.data<int64_t>("out_t", {v.size, k}),
                          out_eid.data<int64_t>("out_eid", {v.size, k}),
                          out_count.data<int32_t>("out_count", {v.size}), k};
  if (key) {
    uniform_neighbors(csr, queries, *key, rows);
  } else {
    recent_neighbors(csr, queries, rows);
  }
}

}  // namespace

void bind_static_csr(py::module_& m) {
  py::class_<StaticCsr>(m, "StaticCsr")
      .def(py::init<Direction>(), py::arg("direction"))
      .def("build", &build, py::arg("src"), py::arg("dst"), py::arg("t"), no_gil())
      .def("insert", &insert, py::arg("src"), py::arg("dst"), py::arg("t"), no_gil())
      .def_property_readonly("num_entries", &StaticCsr::num_entries)
      .def("sample", &sample, py::arg("nodes"), py::arg("t"), py::arg("before"), py::arg("key"),
           py::arg("out_nodes"), py::arg("out_t"), py::arg("out_eid"), py::arg("out_count"), no_gil());
}
