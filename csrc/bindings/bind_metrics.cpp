#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/link_metrics.hpp"

namespace bindings::metrics {

/// The elements of one or two dimensions, of any strides, in their order.
template <typename T>
std::vector<double> copied(const T* data, const TensorArg& x) {
  const int64_t rows = x.length(0), width = x.dims() > 1 ? x.length(1) : 1;
  const int64_t row_stride = x.stride(0), stride = x.dims() > 1 ? x.stride(1) : 1;
  std::vector<double> out(static_cast<std::size_t>(rows * width));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) out[i * width + j] = data[i * row_stride + j * stride];
  }
  return out;
}

/// The scores of a float32 or float64 tensor, of one or two dimensions.
std::vector<double> scores_of(const char* name, const TensorArg& scores, TensorArg::Shape shape) {
  std::vector<double> out = scores.has_type<float>()
                                ? copied(scores.strided<const float>(name, shape), scores)
                                : copied(scores.strided<const double>(name, shape), scores);
  const auto bad = std::find_if(out.begin(), out.end(), [](double score) { return std::isnan(score); });
  if (bad == out.end()) return out;
  throw std::invalid_argument(std::string(name) + " score " + std::to_string(bad - out.begin()) + " of " +
                              std::to_string(out.size()) +
                              " is NaN, which has no place in a ranking; the model has diverged, or its "
                              "input is not finite");
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
/// Scores of learned events and their negatives, how many come before the replayed ones, and the mask.
using Learned = std::optional<std::tuple<TensorArg, TensorArg, int64_t, OptionalTensor>>;

std::optional<double> replay_of(const Learned& learned, double tolerance) {
  if (!learned) return std::nullopt;
  const auto& [positive, negative, num_new, mask] = *learned;
  const auto own = scores_of("learned positive", positive, {"N"});
  const auto rows = static_cast<int64_t>(own.size());
  const auto others = scores_of("learned negative", negative, {rows, "m"});
  const int64_t width = negative.length(1);
  const auto* is_there = data_or_null<const bool>(mask, "learned mask", {rows, width});
  check_number("num_new", num_new, 0, rows);
  check_number("the number of learned negatives", width, 1);
  std::vector<double> replayed, first;
  for (int64_t i = num_new; i < rows; ++i) {
    if (is_there != nullptr && !is_there[i * width]) continue;
    replayed.push_back(own[i]);
    first.push_back(others[i * width]);
  }
  if (replayed.empty()) return std::nullopt;
  return tgflow::compare_scores(std::move(replayed), std::move(first), tolerance).precision;
}

template <typename T>
bool is_finite(const T* data, const TensorArg& x, int dim = 0) {
  if (dim == x.dims()) return std::isfinite(*data);
  for (int64_t i = 0; i < x.length(dim); ++i) {
    if (!is_finite(data + i * x.stride(dim), x, dim + 1)) return false;
  }
  return true;
}

bool are_finite(const std::vector<TensorArg>& values) {
  return std::all_of(values.begin(), values.end(), [](const TensorArg& x) {
    return x.has_type<float>() ? is_finite(x.strided<const float>("values"), x)
                               : is_finite(x.strided<const double>("values"), x);
  });
}

auto link_figures(const TensorArg& positive, const TensorArg& negative, double tolerance,
                  const OptionalTensor& mask, const OptionalTensor& ranks, const OptionalTensor& is_first,
                  int64_t begin, int64_t every, const Further& further, const Learned& learned) {
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
                    found.squares, replay_of(learned, tolerance));
}

}  // namespace bindings::metrics

void bind_metrics(py::module_& m) {
  using namespace bindings::metrics;
  m.def("rank_scores", &rank_scores, "positive"_a, "negative"_a, "tolerance"_a, "out"_a, no_gil());
  m.def("compare_scores", &compare_scores, "positive"_a, "negative"_a, "tolerance"_a, no_gil());
  m.def("link_figures", &link_figures, "positive"_a, "negative"_a, "tolerance"_a, "mask"_a = py::none(),
        "ranks"_a = py::none(), "is_first"_a = py::none(), "begin"_a = 0, "every"_a = 1,
        "further"_a = Further(), "learned"_a = py::none(), no_gil());
  m.def("are_finite", &are_finite, "values"_a, no_gil());
}
