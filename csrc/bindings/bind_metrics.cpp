#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tgflow/link_metrics.hpp"

namespace bindings::metrics {

using no_gil = py::call_guard<py::gil_scoped_release>;

void check_scores(const char* name, const double* scores, int64_t size) {
  const double* bad = std::find_if(scores, scores + size, [](double x) { return std::isnan(x); });
  if (bad == scores + size) return;
  throw std::invalid_argument(std::string(name) + " score " + std::to_string(bad - scores) + " of " +
                              std::to_string(size) +
                              " is NaN, which has no place in a ranking; the model has diverged, or its "
                              "input is not finite");
}

void rank_scores(const TensorArg& positive, const TensorArg& negative, double tolerance,
                 const TensorArg& out) {
  const auto own = positive.vector<const double>("positive");
  const double* others = negative.data<const double>("negative", {own.size, "m"});
  const int64_t width = negative.length(1);
  check_scores("positive", own.data, own.size);
  check_scores("negative", others, own.size * width);
  tgflow::rank_scores(own.data, others, own.size, width, tolerance, out.data<double>("out", {own.size}));
}

std::pair<int64_t, double> compare_scores(const TensorArg& positive, const TensorArg& negative,
                                          double tolerance, const TensorArg& gained) {
  const auto own = positive.vector<const double>("positive");
  const auto others = negative.vector<const double>("negative");
  double* out = gained.data<double>("gained", {own.size});
  check_scores("positive", own.data, own.size);
  check_scores("negative", others.data, others.size);
  const auto found = tgflow::compare_scores({own.data, own.data + own.size},
                                            {others.data, others.data + others.size}, tolerance);
  std::copy(found.gained.begin(), found.gained.end(), out);
  return {static_cast<int64_t>(found.gained.size()), found.num_above};
}

}  // namespace bindings::metrics

void bind_metrics(py::module_& m) {
  using namespace bindings::metrics;
  m.def("rank_scores", &rank_scores, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        py::arg("out"), no_gil());
  m.def("compare_scores", &compare_scores, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        py::arg("gained"), no_gil());
}
