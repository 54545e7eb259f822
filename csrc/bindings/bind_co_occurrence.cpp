#include "bindings.hpp"
#include "tgflow/co_occurrence.hpp"

namespace bindings::co_occurrence {

void co_occurrence(const TensorArg& self, const TensorArg& other, const TensorArg& mask,
                   const TensorArg& src_row, const TensorArg& dst_row, const TensorArg& out) {
  const auto own = self.vector<const int64_t>("self");
  const auto* others = other.data<const int64_t>("other", {own.size, "k"});
  const int64_t k = other.length(1);
  const auto src = src_row.vector<const int64_t>("src_row");
  const auto* dst = dst_row.data<const int64_t>("dst_row", {src.size});
  check_range("src_row", src, 0, own.size);
  check_range("dst_row", {dst, src.size}, 0, own.size);
  const tgflow::Sequences sequences{own.size, k, own.data, others,
                                    mask.data<const bool>("mask", {own.size, k})};
  tgflow::co_occurrence(sequences, src.data, dst, src.size,
                        out.data<int32_t>("out", {src.size, 2, 1 + k, 2}));
}

}  // namespace bindings::co_occurrence

void bind_co_occurrence(py::module_& m) {
  using namespace bindings::co_occurrence;
  m.def("co_occurrence", &co_occurrence, py::kw_only(), py::arg("self"), py::arg("other"), py::arg("mask"),
        py::arg("src_row"), py::arg("dst_row"), py::arg("out"), py::call_guard<py::gil_scoped_release>());
}
