#include "tgflow/link_metrics.hpp"

#include <algorithm>
#include <functional>

namespace tgflow {

void rank_scores(const double* positive, const ScoreRows& negative, double* out) {
  for (int64_t i = 0; i < negative.rows; ++i) {
    const double* row = negative.row(i);
    int64_t above = 0, not_below = 0;
    for (int64_t j = 0; j < negative.width; ++j) {
      above += row[j] > positive[i];
      not_below += row[j] >= positive[i];
    }
    out[i] = static_cast<double>(above + not_below) / 2 + 1;
  }
}

Comparison compare_scores(std::vector<double> positive, std::vector<double> negative) {
  std::sort(positive.begin(), positive.end(), std::greater<>());
  std::sort(negative.begin(), negative.end(), std::greater<>());
  Comparison out{};
  size_t num_true = 0, num_false = 0;
  while (num_true < positive.size() || num_false < negative.size()) {
    const bool is_true = num_false == negative.size() ||
                         (num_true < positive.size() && positive[num_true] >= negative[num_false]);
    const double score = is_true ? positive[num_true] : negative[num_false];
    const size_t true_before = num_true, false_before = num_false;
    while (num_true < positive.size() && positive[num_true] == score) ++num_true;
    while (num_false < negative.size() && negative[num_false] == score) ++num_false;
    const double precision = static_cast<double>(num_true) / static_cast<double>(num_true + num_false);
    out.gained.push_back(static_cast<double>(num_true - true_before) * precision);
    out.num_above +=
        static_cast<double>(num_false - false_before) * static_cast<double>(num_true + true_before) / 2;
  }
  return out;
}

}  // namespace tgflow
