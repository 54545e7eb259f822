#include "bindings.hpp"
#include "tgflow/gru.hpp"

namespace {

using tgflow::Gru;

Gru checked(const TensorArg& memory, const TensorArg& own) {
  const auto before = memory.matrix<const float>("memory", "R", "dim");
  return {before.rows, before.width, before.data, before.stride,
          own.data<const float>("own", {before.rows, before.width})};
}

void gru_forward(const TensorArg& memory, const TensorArg& own, const TensorArg& gates,
                 const TensorArg& out) {
  const Gru gru = checked(memory, own);
  tgflow::gru_forward(gru, gates.data<float>("gates", {gru.num_rows, 3 * gru.dim}),
                      out.data<float>("out", {gru.num_rows, gru.dim}));
}

void gru_backward(const TensorArg& memory, const TensorArg& own, const TensorArg& gates,
                  const TensorArg& grad_out, const TensorArg& grad_gates, const TensorArg& grad_own) {
  const Gru gru = checked(memory, own);
  const int64_t rows = gru.num_rows, dim = gru.dim;
  tgflow::gru_backward(gru, gates.data<const float>("gates", {rows, 3 * dim}),
                       grad_out.data<const float>("grad_out", {rows, dim}),
                       grad_gates.data<float>("grad_gates", {rows, 3 * dim}),
                       grad_own.data<float>("grad_own", {rows, dim}));
}

}  // namespace

void bind_gru(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  m.def("gru_forward", &gru_forward, py::kw_only(), py::arg("memory"), py::arg("own"), py::arg("gates"),
        py::arg("out"), no_gil);
  m.def("gru_backward", &gru_backward, py::kw_only(), py::arg("memory"), py::arg("own"), py::arg("gates"),
        py::arg("grad_out"), py::arg("grad_gates"), py::arg("grad_own"), no_gil);
}
