#include "bindings.hpp"
#include "tgflow/sampling.hpp"
#include "tgflow/static_csr.hpp"

using tgflow::Direction;
using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::StaticCsr;

void bind_static_csr(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<StaticCsr>(m, "StaticCsr")
      .def(py::init<Direction>(), py::arg("direction"))
      .def(
          "build",
          [](StaticCsr& csr, address_t src, address_t dst, address_t t, int64_t size) {
            csr.build(events_at(src, dst, t, 0, size));
          },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("size"), no_gil)
      .def(
          "insert",
          [](StaticCsr& csr, address_t src, address_t dst, address_t t, int64_t size) {
            csr.insert(events_at(src, dst, t, 0, size));
          },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("size"), no_gil)
      .def_property_readonly("num_entries", &StaticCsr::num_entries)
      .def(
          "recent",
          [](const StaticCsr& csr, address_t nodes, address_t t, int64_t before, int64_t size, int64_t k,
             address_t out_nodes, address_t out_t, address_t out_eid, address_t out_count) {
            recent_neighbors(csr, Queries{at<int64_t>(nodes), at<int64_t>(t), nullptr, before, size},
                             NeighborRows{at<int64_t>(out_nodes), at<int64_t>(out_t), at<int64_t>(out_eid),
                                          at<int32_t>(out_count), k});
          },
          py::arg("nodes"), py::arg("t"), py::arg("before"), py::arg("size"), py::arg("k"),
          py::arg("out_nodes"), py::arg("out_t"), py::arg("out_eid"), py::arg("out_count"), no_gil)
      .def(
          "uniform",
          [](const StaticCsr& csr, address_t nodes, address_t t, int64_t before, int64_t size, int64_t k,
             uint64_t key, address_t out_nodes, address_t out_t, address_t out_eid, address_t out_count) {
            uniform_neighbors(csr, Queries{at<int64_t>(nodes), at<int64_t>(t), nullptr, before, size}, key,
                              NeighborRows{at<int64_t>(out_nodes), at<int64_t>(out_t), at<int64_t>(out_eid),
                                           at<int32_t>(out_count), k});
          },
          py::arg("nodes"), py::arg("t"), py::arg("before"), py::arg("size"), py::arg("k"), py::arg("key"),
          py::arg("out_nodes"), py::arg("out_t"), py::arg("out_eid"), py::arg("out_count"), no_gil);
}
