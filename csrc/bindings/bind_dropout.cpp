#include "bindings.hpp"
#include "tgflow/dropout.hpp"

namespace bindings::dropout {

void check_rate(double rate) {
  if (!(rate >= 0 && rate < 1)) {
    throw std::invalid_argument("rate must be at least 0 and less than 1, got " + std::to_string(rate));
  }
}

void keep_factors(const TensorArg& key, double rate, const TensorArg& out) {
  check_rate(rate);
  const auto* bits = key.data<const int64_t>("key", {1});
  float* factors = out.data<float>("out", {"rows", "size"});
  tgflow::keep_factors(static_cast<uint64_t>(*bits), rate, out.length(0), out.length(1), factors);
}

void gelu_dropout(const TensorArg& key, double rate, const TensorArg& x, const TensorArg& out) {
  check_rate(rate);
  const auto* bits = key.data<const int64_t>("key", {1});
  float* values = x.data<float>("x", {"size"});
  float* result = out.data<float>("out", {x.length(0)});
  tgflow::gelu_dropout(static_cast<uint64_t>(*bits), rate, x.length(0), values, result);
}

}  // namespace bindings::dropout

void bind_dropout(py::module_& m) {
  using namespace bindings::dropout;
  m.def("keep_factors", &keep_factors, py::kw_only(), py::arg("key"), py::arg("rate"), py::arg("out"),
        py::call_guard<py::gil_scoped_release>());
  m.def("gelu_dropout", &gelu_dropout, py::kw_only(), py::arg("key"), py::arg("rate"), py::arg("x"),
        py::arg("out"), py::call_guard<py::gil_scoped_release>());
}
