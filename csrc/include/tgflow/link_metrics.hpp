// Ranks of scores of events among scores of negatives. Scores count as tied if they differ by at most
// tolerance * max(1, |positive|); with tolerance 0, if they are equal. No score may be NaN.
#pragma once

#include <cstdint>
#include <vector>

namespace tgflow {

/// Writes each positive's rank among the negatives of its row, 1 being best: the middle of the range left
/// open by ties. `positive` and `out` are [rows], `negative` is [rows, width].
void rank_scores(const double* positive, const double* negative, int64_t rows, int64_t width,
                 double tolerance, double* out);

struct Comparison {
  double precision;  ///< Average precision: the mean over positives of the precision at their scores.
  double area;       ///< ROC AUC: the share of pairs in which the positive scores higher, ties one half.
};

/// Compares all positives with all negatives, at least one of each.
Comparison compare_scores(std::vector<double> positive, std::vector<double> negative, double tolerance);

}  // namespace tgflow
