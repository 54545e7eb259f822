#include "bindings.hpp"
#include "tgflow/belady.hpp"

namespace {

using tgflow::Belady;
using no_gil = py::call_guard<py::gil_scoped_release>;

std::unique_ptr<Belady> make(int64_t num_slots, address_t id) {
  return std::make_unique<Belady>(num_slots, at<const int64_t>(id));
}

void observe(Belady& planner, address_t id, int64_t n) { planner.observe(at<const int64_t>(id), n); }

void plan_next(Belady& planner, address_t id, address_t hit, address_t admit) {
  planner.plan_next({at<int64_t>(id), at<int32_t>(hit), at<int32_t>(admit)});
}

void contents(const Belady& planner, address_t id) { planner.contents(at<int64_t>(id)); }

}  // namespace

void bind_belady(py::module_& m) {
  py::class_<Belady>(m, "Belady")
      .def(py::init(&make), py::arg("num_slots"), py::arg("id"), no_gil())
      .def_property_readonly("num_slots", &Belady::num_slots)
      .def_property_readonly("num_batches", &Belady::num_batches)
      .def_property_readonly("num_accesses", &Belady::num_accesses)
      .def_property_readonly("next_size", &Belady::next_size)
      .def_property_readonly("bytes", &Belady::bytes)
      .def("observe", &observe, py::arg("id"), py::arg("n"), no_gil())
      .def("plan_next", &plan_next, py::arg("id"), py::arg("hit"), py::arg("admit"), no_gil())
      .def("contents", &contents, py::arg("id"), no_gil());
}
