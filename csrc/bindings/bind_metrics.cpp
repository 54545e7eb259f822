#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tgflow/link_metrics.hpp"

namespace bindings::metrics {

using tgflow::ScoreRows;
using no_gil = py::call_guard<py::gil_scoped_release>;

ScoreRows checked(const char* name, const ScoreRows& scores) {
  for (int64_t i = 0; i < scores.rows; ++i) {
    const double* end = scores.row(i) + scores.width;
    const double* bad = std::find_if(scores.row(i), end, [](double x) { return std::isnan(x); });
    if (bad == end) continue;
    throw std::invalid_argument(std::string(name) + " score " +
                                std::to_string(i * scores.width + (bad - scores.row(i))) + " of " +
                                std::to_string(scores.rows * scores.width) +
                                " is NaN, which has no place in a ranking; the model has diverged, or its "
                                "input is not finite");
  }
  return scores;
}

ScoreRows positives(const TensorArg& given) {
  const auto scores = given.vector<const double>("positive");
  return checked("positive", {scores.data, scores.size, 1, 1});
}

ScoreRows negatives(const TensorArg& given, Dim rows, Dim width) {
  const auto scores = given.matrix<const double>("negative", rows, width);
  return checked("negative", {scores.data, scores.rows, scores.width, scores.stride});
}

void rank_scores(const TensorArg& positive, const TensorArg& negative, double tolerance,
                 const TensorArg& out) {
  const ScoreRows own = positives(positive), others = negatives(negative, own.rows, "m");
  tgflow::rank_scores(own.data, others, tolerance, out.data<double>("out", {own.rows}));
}

std::pair<int64_t, double> compare_scores(const TensorArg& positive, const TensorArg& negative,
                                          double tolerance, const TensorArg& gained) {
  const ScoreRows own = positives(positive), others = negatives(negative, "N", 1);
  double* out = gained.data<double>("gained", {own.rows});
  std::vector<double> true_scores(own.data, own.data + own.rows), false_scores;
  for (int64_t i = 0; i < others.rows; ++i) false_scores.push_back(*others.row(i));
  const auto found = tgflow::compare_scores(std::move(true_scores), std::move(false_scores), tolerance);
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
