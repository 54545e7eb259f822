// Ranks of scores of events among scores of negatives. Scores count as tied if they differ by at most
// tolerance * max(1, |positive|); with tolerance 0, if they are equal. No score may be NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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

/// Scores of the events of a micro-batch, and of their negatives.
struct LinkScores {
  std::vector<double> positive;  ///< [rows].
  std::vector<double> negative;  ///< [rows, width]: random ones, then further ones.
  int64_t width;
  std::vector<std::pair<std::string, int64_t>> further;  ///< Names of kinds of these, and their numbers.
  const bool* mask;      ///< [rows, width], which negatives there are; null: all of every event.
  const double* ranks;   ///< [rows], NaN for events that are not ranked; null: those among random negatives.
  const bool* is_first;  ///< [rows], which events are the first ones of their pair; null: not known.
  int64_t begin, every;  ///< Log position. With a mask one event of `every` is ranked, see `is_chosen`.
  double tolerance;
};

/// Means by name, each with its weight.
using Figures = std::vector<std::pair<std::string, std::pair<double, double>>>;

struct LinkFigures {
  Figures of_events, of_ranked, of_some;
  std::optional<double> squares;  ///< Sum of squared reciprocal ranks; none unless ranked among several.
};

/// Measures a micro-batch; figures of no event are left out. Sums are in the order of torch's CPU kernel.
LinkFigures link_figures(LinkScores scores);

}  // namespace tgflow
