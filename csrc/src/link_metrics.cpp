#include "tgflow/link_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "tgflow/random.hpp"

namespace tgflow {

namespace {

/// Returns the distance within which a score is tied with `score`. An infinite score ties only with itself.
double margin(double score, double tolerance) {
  return std::isinf(score) ? 0 : tolerance * std::max(1.0, std::abs(score));
}

/// The score of a negative that is not there.
constexpr double kNone = -std::numeric_limits<double>::infinity();

double rank_of(double score, const double* others, int64_t num, double tolerance) {
  const double high = score + margin(score, tolerance), low = score - margin(score, tolerance);
  int64_t above = 0, not_below = 0;
  for (int64_t j = 0; j < num; ++j) {
    above += others[j] > high;
    not_below += others[j] >= low;
  }
  return static_cast<double>(above + not_below) / 2 + 1;
}

/// The sum of x in the order of torch's CPU kernel: 16 lanes, each in levels of 16 steps, then 4 lanes.
double sum_of(const std::vector<double>& x) {
  constexpr std::size_t kLanes = 4, kWidth = 16, kLevels = 4, kPower = 4;
  const std::size_t steps = x.size() / kWidth, vectors = x.size() / kLanes;
  std::array<std::array<double, kWidth>, kLevels> sums{};
  const auto add = [](auto& sums, const double* more) {
    for (std::size_t k = 0; k < kWidth; ++k) sums[k] += more[k];
  };
  for (std::size_t i = 0; i < steps;) {
    add(sums[0], &x[kWidth * i++]);
    for (std::size_t level = 1; level < kLevels && i % (std::size_t{1} << (level * kPower)) == 0; ++level) {
      add(sums[level], sums[level - 1].data());
      sums[level - 1] = {};
    }
  }
  for (std::size_t level = 1; level < kLevels; ++level) add(sums[0], sums[level].data());
  for (std::size_t k = steps * kWidth; k < vectors * kLanes; ++k) sums[0][k % kLanes] += x[k];
  for (std::size_t k = kLanes; k < kWidth; ++k) sums[0][k % kLanes] += sums[0][k];
  double sum = 0;
  for (std::size_t k = vectors * kLanes; k < x.size(); ++k) sum += x[k];
  for (std::size_t k = 0; k < kLanes; ++k) sum += sums[0][k];
  return sum;
}

}  // namespace

void rank_scores(const double* positive, const double* negative, int64_t rows, int64_t width,
                 double tolerance, double* out) {
  for (int64_t i = 0; i < rows; ++i) out[i] = rank_of(positive[i], negative + i * width, width, tolerance);
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

LinkFigures link_figures(LinkScores s) {
  LinkFigures out;
  const auto rows = static_cast<int64_t>(s.positive.size());
  if (rows * s.width > 0) {
    std::vector<double> column;
    for (int64_t i = 0; i < rows; ++i) column.push_back(s.negative[i * s.width]);
    const Comparison pairs = compare_scores(s.positive, std::move(column), s.tolerance);
    out.of_events = {{"ap", {pairs.precision, 1}}, {"auc", {pairs.area, 1}}};
  }
  int64_t num_random = s.width;
  for (const auto& [name, num] : s.further) num_random -= num;
  std::vector<double> all, squares, top_1, top_10, returns, first;
  std::vector<std::vector<double>> further(s.further.size());
  const auto put = [](Figures& into, const std::string& name, const std::vector<double>& values) {
    const auto num = static_cast<double>(values.size());
    if (num > 0) into.push_back({name, {sum_of(values) / num, num}});
  };
  for (int64_t i = 0; i < rows; ++i) {
    const bool is_in_sample = s.mask == nullptr || is_chosen(s.begin + i, s.every);
    if (s.ranks != nullptr ? std::isnan(s.ranks[i]) : !is_in_sample) continue;
    double* others = s.negative.data() + i * s.width;
    for (int64_t j = 0; s.mask != nullptr && j < s.width; ++j) {
      if (!s.mask[i * s.width + j]) others[j] = kNone;
    }
    const auto among = [&](int64_t num) { return rank_of(s.positive[i], others, num, s.tolerance); };
    const double rank = s.ranks != nullptr ? s.ranks[i] : among(num_random);
    all.push_back(1 / rank);
    squares.push_back(1 / (rank * rank));
    top_1.push_back(rank <= 1);
    top_10.push_back(rank <= 10);
    if (s.is_first != nullptr) (s.is_first[i] ? first : returns).push_back(1 / rank);
    others += num_random;
    for (std::size_t k = 0; k < further.size(); others += s.further[k++].second) {
      const int64_t num = s.further[k].second;
      if (*std::max_element(others, others + num) > kNone) further[k].push_back(1 / among(num));
    }
  }
  if (num_random > 1 || s.ranks != nullptr) {
    put(out.of_ranked, "mrr", all);
    put(out.of_ranked, "hits@1", top_1);
    put(out.of_ranked, "hits@10", top_10);
    put(out.of_some, "mrr_returns", returns);
    put(out.of_some, "mrr_first", first);
    out.squares = sum_of(squares);
  }
  for (std::size_t k = 0; k < further.size(); ++k) put(out.of_some, s.further[k].first, further[k]);
  return out;
}

}  // namespace tgflow
