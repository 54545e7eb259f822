#include "bindings.hpp"
#include "tgflow/walk_features.hpp"

namespace {

using tgflow::WalkPairs;
using tgflow::WalkRows;

/// Raises IndexError unless rows are below `num_rows`; those of `a` may be negative, and then `b` is not
/// read.
void check_pairs(const WalkPairs& pairs, int64_t num_rows) {
  for (int64_t p = 0; p < pairs.num_pairs; ++p) {
    if (pairs.a[p] < 0) continue;
    check_range("a", {pairs.a + p, 1}, 0, num_rows);
    check_range("b", {pairs.b + p, 1}, 0, num_rows);
  }
}

void walk_features(const TensorArg& base, const TensorArg& state, const TensorArg& a, const TensorArg& b,
                   const TensorArg& decay_a, const TensorArg& decay_b, const TensorArg& out) {
  WalkRows rows{};
  rows.base = base.data<const float>("base", {"N", "dim"});
  rows.num_rows = base.length(0), rows.dim = base.length(1);
  rows.state = state.data<const float>("state", {rows.num_rows, "hops", rows.dim});
  rows.hops = state.length(1);
  const auto first = a.vector<const int64_t>("a");
  const WalkPairs pairs{first.size, first.data, b.data<const int64_t>("b", {first.size}),
                        decay_a.data<const float>("decay_a", {first.size}),
                        decay_b.data<const float>("decay_b", {first.size})};
  check_pairs(pairs, rows.num_rows);
  tgflow::walk_features(rows, pairs,
                        out.data<float>("out", {first.size, tgflow::num_walk_products(rows.hops)}));
}

}  // namespace

void bind_walk_features(py::module_& m) {
  m.def("walk_features", &walk_features, py::kw_only(), py::arg("base"), py::arg("state"), py::arg("a"),
        py::arg("b"), py::arg("decay_a"), py::arg("decay_b"), py::arg("out"),
        py::call_guard<py::gil_scoped_release>());
}
