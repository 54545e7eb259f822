#include "bindings.hpp"
#include "tgflow/dropout.hpp"

namespace {

void keep_factors(const TensorArg& key, double rate, const TensorArg& out) {
  if (!(rate >= 0 && rate < 1)) {
    throw std::invalid_argument("rate must be at least 0 and less than 1, got " + std::to_string(rate));
  }
  const auto* bits = key.data<const int64_t>("key", {1});
  float* factors = out.data<float>("out", {"rows", "size"});
  tgflow::keep_factors(static_cast<uint64_t>(*bits), rate, out.length(0), out.length(1), factors);
}

}  // namespace

void bind_dropout(py::module_& m) {
  m.def("keep_factors", &keep_factors, py::kw_only(), py::arg("key"), py::arg("rate"), py::arg("out"),
        py::call_guard<py::gil_scoped_release>());
}
