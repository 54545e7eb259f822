#include "bindings.hpp"
#include "tgflow/cosines.hpp"

namespace {

void cosines(const TensorArg& dt, const TensorArg& frequency, const TensorArg& out) {
  const auto times = dt.vector<const float>("dt"), w = frequency.vector<const float>("frequency");
  tgflow::cosines(times.size, w.size, times.data, w.data, out.data<float>("out", {times.size, w.size}));
}

}  // namespace

void bind_cosines(py::module_& m) {
  m.def("cosines", &cosines, py::kw_only(), py::arg("dt"), py::arg("frequency"), py::arg("out"),
        py::call_guard<py::gil_scoped_release>());
}
