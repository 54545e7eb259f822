#include "tgflow/link_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace tgflow {

namespace {

/// Returns the distance within which a score is tied with `score`. An infinite score ties only with itself.
double margin(double score, double tolerance) {
  return std::isinf(score) ? 0 : tolerance * std::max(1.0, std::abs(score));
}

}  // namespace

void rank_scores(const double* positive, const double* negative, int64_t rows, int64_t width,
                 double tolerance, double* out) {
  for (int64_t i = 0; i < rows; ++i) {
    const double* row = negative + i * width;
    const double high = positive[i] + margin(positive[i], tolerance);
    const double low = positive[i] - margin(positive[i], tolerance);
    int64_t above = 0, not_below = 0;
    for (int64_t j = 0; j < width; ++j) {
      above += row[j] > high;
      not_below += row[j] >= low;
    }
    out[i] = static_cast<double>(above + not_below) / 2 + 1;
  }
}

Comparison compare_scores(std::vector<double> positive, std::vector<double> negative, double tolerance) {
  std::sort(positive.begin(), positive.end(), std::greater<>());
  std::sort(negative.begin(), negative.end(), std::greater<>());
  Comparison out{};
  size_t num_true = 0, num_false = 0, num_higher = 0;  // the first two: at least as high
  for (size_t i = 0; i < positive.size();) {
    const double score = positive[i], low = score - margin(score, tolerance),
                 high = score + margin(score, tolerance);
    while (num_true < positive.size() && positive[num_true] >= low) ++num_true;
    while (num_false < negative.size() && negative[num_false] >= low) ++num_false;
    while (num_higher < negative.size() && negative[num_higher] > high) ++num_higher;
    const size_t begin = i;
    while (i < positive.size() && positive[i] == score) ++i;
    const auto num_equal = static_cast<double>(i - begin);
    out.precision += num_equal * static_cast<double>(num_true) / static_cast<double>(num_true + num_false);
    out.area += num_equal * (static_cast<double>(negative.size() - num_false) +
                             static_cast<double>(num_false - num_higher) / 2);
  }
  const auto num_positive = static_cast<double>(positive.size());
  out.precision /= num_positive;
  out.area /= num_positive * static_cast<double>(negative.size());
  return out;
}

}  // namespace tgflow
