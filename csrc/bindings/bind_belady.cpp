#include "bindings.hpp"
#include "tgflow/belady.hpp"

namespace bindings::belady {

using tgflow::Belady;
using no_gil = py::call_guard<py::gil_scoped_release>;

std::unique_ptr<Belady> make(int64_t num_slots, const std::optional<TensorArg>& contents) {
  return std::make_unique<Belady>(num_slots, data_or_null<const int64_t>(contents, "contents", {num_slots}));
}

void observe(Belady& planner, const TensorArg& id) {
  const auto ids = id.vector<const int64_t>("id");
  planner.observe(ids.data, ids.size);
}

int64_t next_size(const Belady& planner) {
  if (planner.num_batches() == 0) throw std::out_of_range("no batch waits to be planned; observe one first");
  return planner.next_size();
}

void plan_next(Belady& planner, const TensorArg& id, const TensorArg& hit, const TensorArg& admit) {
  const int64_t size = next_size(planner);
  planner.plan_next({id.data<int64_t>("id", {size}), hit.data<int32_t>("hit", {size}),
                     admit.data<int32_t>("admit", {size})});
}

void contents(const Belady& planner, const TensorArg& id) {
  planner.contents(id.data<int64_t>("id", {planner.num_slots()}));
}

}  // namespace bindings::belady

void bind_belady(py::module_& m) {
  using namespace bindings::belady;
  py::class_<Belady>(m, "Belady")
      .def(py::init(&make), py::arg("num_slots"), py::arg("contents"), no_gil())
      .def_property_readonly("num_slots", &Belady::num_slots)
      .def_property_readonly("num_batches", &Belady::num_batches)
      .def_property_readonly("num_accesses", &Belady::num_accesses)
      .def_property_readonly("next_size", &next_size)
      .def_property_readonly("bytes", &Belady::bytes)
      .def("observe", &observe, py::arg("id"), no_gil())
      .def("plan_next", &plan_next, py::arg("id"), py::arg("hit"), py::arg("admit"), no_gil())
      .def("contents", &contents, py::arg("id"), no_gil());
}
