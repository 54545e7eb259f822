#include "bindings.hpp"
#include "tgflow/row_memo.hpp"

namespace {

using tgflow::MemoKeys;
using tgflow::RowMemo;
using no_gil = py::call_guard<py::gil_scoped_release>;

RowMemo* new_memo(int64_t dim, int64_t budget) {
  check_number("dim", dim, 1, int64_t{1} << 24);
  check_number("budget", budget, 1, int64_t{1} << 46);
  return new RowMemo(dim, budget);
}

MemoKeys keys_of(int64_t layer, const TensorArg& nodes, const TensorArg& t, const TensorArg& position) {
  const auto node = nodes.vector<const int64_t>("nodes");
  return {layer, node.size, node.data, t.data<const int64_t>("t", {node.size}),
          position.data<const int64_t>("position", {node.size})};
}

int64_t find(RowMemo& memo, int64_t stamp, int64_t layer, const TensorArg& nodes, const TensorArg& t,
             const TensorArg& position, const TensorArg& out, const TensorArg& missing) {
  const MemoKeys keys = keys_of(layer, nodes, t, position);
  auto* rows = out.data<float>("out", {keys.size, memo.dim()});
  return memo.find(stamp, keys, rows, missing.data<int64_t>("missing", {keys.size}));
}

void add(RowMemo& memo, int64_t stamp, int64_t layer, const TensorArg& nodes, const TensorArg& t,
         const TensorArg& position, const TensorArg& rows) {
  const MemoKeys keys = keys_of(layer, nodes, t, position);
  memo.add(stamp, keys, rows.data<const float>("rows", {keys.size, memo.dim()}));
}

}  // namespace

void bind_row_memo(py::module_& m) {
  py::class_<RowMemo>(m, "RowMemo")
      .def(py::init(&new_memo), py::arg("dim"), py::arg("budget"))
      .def("__len__", &RowMemo::size)
      .def_property_readonly("bytes", &RowMemo::bytes)
      .def("find", &find, py::arg("stamp"), py::arg("layer"), py::arg("nodes"), py::arg("t"),
           py::arg("position"), py::arg("out"), py::arg("missing"), no_gil())
      .def("add", &add, py::arg("stamp"), py::arg("layer"), py::arg("nodes"), py::arg("t"),
           py::arg("position"), py::arg("rows"), no_gil());
}
