// Ranks of scores of events among scores of negatives. Scores count as tied if they differ by at most
// tolerance * max(1, |positive|); with tolerance 0, if they are equal.
#pragma once

#include <cstdint>
#include <vector>

namespace tgflow {

/// Scores in rows, each of which is contiguous; none of them is NaN.
struct ScoreRows {
  const double* data;
  int64_t rows;
  int64_t width;
  int64_t stride;

  const double* row(int64_t i) const { return data + i * stride; }
};

/// Writes each positive's rank among the negatives of its row, 1 being best: the middle of those that ties
/// leave open. `positive` and `out` are [negative.rows].
void rank_scores(const double* positive, const ScoreRows& negative, double tolerance, double* out);

struct Comparison {
  std::vector<double> gained;  ///< Per distinct positive score, descending: number of positives x precision.
  double num_above;            ///< Pairs in which the positive scores higher; ties count one half.
};

/// Compares all positives with all negatives.
Comparison compare_scores(std::vector<double> positive, std::vector<double> negative, double tolerance);

}  // namespace tgflow
