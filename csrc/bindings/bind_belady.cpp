#include "bindings.hpp"
#include "tgflow/belady.hpp"

namespace {

using tgflow::Belady;
using no_gil = py::call_guard<py::gil_scoped_release>;

void plan(Belady& planner, address_t id, address_t offset, int64_t num_batches, address_t hit,
          address_t admit) {
  planner.plan({at<const int64_t>(id), at<const int64_t>(offset), num_batches},
               {at<int32_t>(hit), at<int32_t>(admit)});
}

void reset(Belady& planner, address_t id) { planner.reset(at<const int64_t>(id)); }
void contents(const Belady& planner, address_t id) { planner.contents(at<int64_t>(id)); }

}  // namespace

void bind_belady(py::module_& m) {
  py::class_<Belady>(m, "Belady")
      .def(py::init<int64_t>(), py::arg("num_slots"))
      .def("__len__", &Belady::num_slots)
      .def("reset", &reset, py::arg("id"), no_gil())
      .def("contents", &contents, py::arg("id"), no_gil())
      .def("plan", &plan, py::arg("id"), py::arg("offset"), py::arg("num_batches"), py::arg("hit"),
           py::arg("admit"), no_gil());
}
