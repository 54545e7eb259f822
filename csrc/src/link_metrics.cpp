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

void count_above(const ScoreRows& positive, const ScoreRows& negative, int64_t* above, int64_t* false_above) {
  std::vector<double> found, others;
  for (int64_t row = 0; row < positive.rows; ++row) {
    found.assign(positive.row(row), positive.row(row) + positive.width);
    others.assign(negative.row(row), negative.row(row) + negative.width);
    std::sort(found.begin(), found.end());
    std::sort(others.begin(), others.end());
    const int64_t num = positive.width;
    int64_t below = 0, false_below = 0;
    for (int64_t i = 0; i < num; ++i) {
      const double score = found[static_cast<size_t>(i)];
      while (found[static_cast<size_t>(below)] < score) ++below;
      while (false_below < negative.width && others[static_cast<size_t>(false_below)] < score) ++false_below;
      above[row * num + i] = num - below;
      false_above[row * num + i] = negative.width - false_below;
    }
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
