#include "bindings.hpp"
#include "tgflow/self_attention.hpp"

namespace {

using tgflow::SelfAttention;
using Optional = std::optional<TensorArg>;

SelfAttention checked(const TensorArg& tokens, const Optional& keep) {
  SelfAttention a{};
  a.tokens = tokens.data<const float>("tokens", {"N", "length", 3, "heads", "width"});
  a.num = tokens.length(0), a.length = tokens.length(1);
  a.heads = tokens.length(3), a.width = tokens.length(4);
  a.keep = data_or_null<const float>(keep, "keep", {a.num, a.heads, a.length, a.length});
  return a;
}

void self_attend(const TensorArg& tokens, const Optional& keep, const Optional& weight,
                 const TensorArg& out) {
  const SelfAttention a = checked(tokens, keep);
  tgflow::self_attend(a, data_or_null<float>(weight, "weight", {a.num, a.heads, a.length, a.length}),
                      out.data<float>("out", {a.num, a.length, a.heads, a.width}));
}

void self_attend_backward(const TensorArg& tokens, const Optional& keep, const TensorArg& weight,
                          const TensorArg& grad_out, const TensorArg& grad_tokens) {
  const SelfAttention a = checked(tokens, keep);
  tgflow::self_attend_backward(
      a, weight.data<const float>("weight", {a.num, a.heads, a.length, a.length}),
      grad_out.data<const float>("grad_out", {a.num, a.length, a.heads, a.width}),
      grad_tokens.data<float>("grad_tokens", {a.num, a.length, 3, a.heads, a.width}));
}

}  // namespace

void bind_self_attention(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  m.def("self_attend", &self_attend, py::kw_only(), py::arg("tokens"), py::arg("keep"), py::arg("weight"),
        py::arg("out"), no_gil);
  m.def("self_attend_backward", &self_attend_backward, py::kw_only(), py::arg("tokens"), py::arg("keep"),
        py::arg("weight"), py::arg("grad_out"), py::arg("grad_tokens"), no_gil);
}
