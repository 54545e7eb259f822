#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tgflow/event_log.hpp"
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

using Further = std::vector<std::pair<std::string, int64_t>>;

auto link_figures(const TensorArg& positive, const TensorArg& negative, double tolerance,
                  const OptionalTensor& mask, const OptionalTensor& ranks, const OptionalTensor& is_first,
                  int64_t begin, int64_t every, const Further& further) {
  auto own = scores_of("positive", positive, {"B"});
  const auto rows = static_cast<int64_t>(own.size());
  auto others = scores_of("negative", negative, {rows, "m"});
  const int64_t width = negative.length(1);
  const auto* is_there = data_or_null<const bool>(mask, "mask", {rows, width});
  const auto* given = data_or_null<const double>(ranks, "ranks", {rows});
  const auto* are_first = data_or_null<const bool>(is_first, "is_first", {rows});
  check_number("begin", begin, 0, tgflow::kMaxEvents);
  check_number("every", every, 1);
  int64_t left = width;
  for (const auto& [name, num] : further) {
    check_number("further", num, 1, left);
    left -= num;
  }
  auto found = tgflow::link_figures({std::move(own), std::move(others), width, further, is_there, given,
                                     are_first, begin, every, tolerance});
  return std::tuple(std::move(found.of_events), std::move(found.of_ranked), std::move(found.of_some),
                    found.squares);
}

bool are_finite(const std::vector<TensorArg>& values) {
  const auto check = [](auto x) {
    return std::all_of(x.data, x.data + x.size, [](auto value) { return std::isfinite(value); });
  };
  return std::all_of(values.begin(), values.end(), [&](const TensorArg& x) {
    return x.has_type<float>() ? check(x.elements<const float>("values"))
                               : check(x.elements<const double>("values"));
  });
}

}  // namespace bindings::metrics

void bind_metrics(py::module_& m) {
  using namespace bindings::metrics;
  m.def("rank_scores", &rank_scores, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        py::arg("out"), no_gil());
  m.def("compare_scores", &compare_scores, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        no_gil());
  m.def("link_figures", &link_figures, py::arg("positive"), py::arg("negative"), py::arg("tolerance"),
        py::arg("mask") = py::none(), py::arg("ranks") = py::none(), py::arg("is_first") = py::none(),
        py::arg("begin") = 0, py::arg("every") = 1, py::arg("further") = Further(), no_gil());
  m.def("are_finite", &are_finite, py::arg("values"), no_gil());
}
