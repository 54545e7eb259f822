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

template <typename T>
std::vector<double> checked_scores(const char* name, Span<const T> scores) {
  const T* bad =
      std::find_if(scores.data, scores.data + scores.size, [](T score) { return std::isnan(score); });
  if (bad == scores.data + scores.size) return {scores.data, bad};
  throw std::invalid_argument(std::string(name) + " score " + std::to_string(bad - scores.data) + " of " +
                              std::to_string(scores.size) +
                              " is NaN, which has no place in a ranking; the model has diverged, or its "
                              "input is not finite");
}

/// The scores of a float32 or float64 tensor.
std::vector<double> scores_of(const char* name, const TensorArg& scores, TensorArg::Shape shape) {
  if (scores.has_type<float>()) {
    return checked_scores<float>(name, {scores.data<const float>(name, shape), scores.numel()});
  }
  return checked_scores<double>(name, {scores.data<const double>(name, shape), scores.numel()});
}

void rank_scores(const TensorArg& positive, const TensorArg& negative, double tolerance,
                 const TensorArg& out) {
  const auto ranks = out.vector<double>("out");
  const auto own = scores_of("positive", positive, {ranks.size});
  const auto others = scores_of("negative", negative, {ranks.size, "m"});
  tgflow::rank_scores(own.data(), others.data(), ranks.size, negative.length(1), tolerance, ranks.data);
}

std::pair<double, double> compare_scores(const TensorArg& positive, const TensorArg& negative,
                                         double tolerance) {
  const auto found = tgflow::compare_scores(scores_of("positive", positive, {"N"}),
                                            scores_of("negative", negative, {"N"}), tolerance);
  return {found.precision, found.area};
}

}  // namespace bindings::metrics

void bind_metrics(py::module_& m) {
  using namespace bindings::metrics;
  m.def("rank_scores", &rank_scores, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        py::arg("out"), no_gil());
  m.def("compare_scores", &compare_scores, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        no_gil());
}
