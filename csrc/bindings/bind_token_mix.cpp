#include "bindings.hpp"
#include "tgflow/token_mix.hpp"

namespace {

using tgflow::TokenMix;
using Optional = std::optional<TensorArg>;

/// Tensors that both passes read; see tgflow/token_mix.hpp for their shapes.
struct Arguments {
  const TensorArg& x;
  const TensorArg& norm_weight;
  const TensorArg& norm_bias;
  const TensorArg& hidden_weight;
  const TensorArg& hidden_bias;
  const TensorArg& out_weight;
  const TensorArg& out_bias;
  const Optional& hidden_keep;
  const Optional& out_keep;
};

TokenMix checked(const Arguments& in) {
  TokenMix m{};
  m.x = in.x.data<const float>("x", {"N", "tokens", "dim"});
  m.num = in.x.length(0), m.tokens = in.x.length(1), m.dim = in.x.length(2);
  m.norm_weight = in.norm_weight.data<const float>("norm_weight", {m.tokens});
  m.norm_bias = in.norm_bias.data<const float>("norm_bias", {m.tokens});
  m.hidden_weight = in.hidden_weight.data<const float>("hidden_weight", {"hidden", m.tokens});
  m.hidden = in.hidden_weight.length(0);
  m.hidden_bias = in.hidden_bias.data<const float>("hidden_bias", {m.hidden});
  m.out_weight = in.out_weight.data<const float>("out_weight", {m.tokens, m.hidden});
  m.out_bias = in.out_bias.data<const float>("out_bias", {m.tokens});
  m.hidden_keep = data_or_null<const float>(in.hidden_keep, "hidden_keep", {m.num, m.dim, m.hidden});
  m.out_keep = data_or_null<const float>(in.out_keep, "out_keep", {m.num, m.dim, m.tokens});
  return m;
}

void token_mix(const TensorArg& x, const TensorArg& norm_weight, const TensorArg& norm_bias,
               const TensorArg& hidden_weight, const TensorArg& hidden_bias, const TensorArg& out_weight,
               const TensorArg& out_bias, const Optional& hidden_keep, const Optional& out_keep,
               const TensorArg& out) {
  const TokenMix m = checked(
      {x, norm_weight, norm_bias, hidden_weight, hidden_bias, out_weight, out_bias, hidden_keep, out_keep});
  tgflow::token_mix(m, out.data<float>("out", {m.num, m.tokens, m.dim}));
}

void token_mix_backward(const TensorArg& x, const TensorArg& norm_weight, const TensorArg& norm_bias,
                        const TensorArg& hidden_weight, const TensorArg& hidden_bias,
                        const TensorArg& out_weight, const TensorArg& out_bias, const Optional& hidden_keep,
                        const Optional& out_keep, const TensorArg& grad_out, const TensorArg& grad_x,
                        const TensorArg& grad_parameters) {
  const TokenMix m = checked(
      {x, norm_weight, norm_bias, hidden_weight, hidden_bias, out_weight, out_bias, hidden_keep, out_keep});
  tgflow::token_mix_backward(m, grad_out.data<const float>("grad_out", {m.num, m.tokens, m.dim}),
                             grad_x.data<float>("grad_x", {m.num, m.tokens, m.dim}),
                             grad_parameters.data<float>("grad_parameters", {m.num_parameters()}));
}

}  // namespace

void bind_token_mix(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  m.def("token_mix", &token_mix, py::kw_only(), py::arg("x"), py::arg("norm_weight"), py::arg("norm_bias"),
        py::arg("hidden_weight"), py::arg("hidden_bias"), py::arg("out_weight"), py::arg("out_bias"),
        py::arg("hidden_keep"), py::arg("out_keep"), py::arg("out"), no_gil);
  m.def("token_mix_backward", &token_mix_backward, py::kw_only(), py::arg("x"), py::arg("norm_weight"),
        py::arg("norm_bias"), py::arg("hidden_weight"), py::arg("hidden_bias"), py::arg("out_weight"),
        py::arg("out_bias"), py::arg("hidden_keep"), py::arg("out_keep"), py::arg("grad_out"),
        py::arg("grad_x"), py::arg("grad_parameters"), no_gil);
}
