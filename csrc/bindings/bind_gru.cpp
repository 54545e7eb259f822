#include "bindings.hpp"
#include "tgflow/gru.hpp"

using tgflow::Gru;

void bind_gru(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<Gru>(m, "Gru").def(
      py::init([](int64_t num_rows, int64_t dim, address_t memory, int64_t memory_stride, address_t own) {
        return Gru{num_rows, dim, at<const float>(memory), memory_stride, at<const float>(own)};
      }),
      py::kw_only(), py::arg("num_rows"), py::arg("dim"), py::arg("memory"), py::arg("memory_stride"),
      py::arg("own"));
  m.def(
      "gru_forward",
      [](const Gru& gru, address_t gates, address_t out) {
        gru_forward(gru, at<float>(gates), at<float>(out));
      },
      py::arg("gru"), py::kw_only(), py::arg("gates"), py::arg("out"), no_gil);
  m.def(
      "gru_backward",
      [](const Gru& gru, address_t gates, address_t grad_out, address_t grad_gates, address_t grad_own) {
        gru_backward(gru, at<const float>(gates), at<const float>(grad_out), at<float>(grad_gates),
                     at<float>(grad_own));
      },
      py::arg("gru"), py::kw_only(), py::arg("gates"), py::arg("grad_out"), py::arg("grad_gates"),
      py::arg("grad_own"), no_gil);
}
