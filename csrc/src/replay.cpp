#include "tgflow/replay.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/random.hpp"

namespace tgflow {
namespace {

constexpr int64_t kTriesPerDraw = 8;
constexpr double kLn2 = 0.693147180559945309417;

/// The weighted age of a uniform `u` in [0, 1): the inverse of the distribution function over `size` ages.
int64_t age_at(double u, int64_t size, double half_life) {
  const double rate = kLn2 / half_life;  // 0 for an infinite half-life
  const double n = static_cast<double>(size);
  const double age = rate * n < 1e-9 ? u * n : -std::log1p(u * std::expm1(-rate * n)) / rate;
  return std::min(static_cast<int64_t>(age), size - 1);
}

/// Draws the rest exactly: `num` of the positions not yet in `drawn`, by exponential race (Efraimidis and
/// Spirakis), in logarithms to avoid underflow of weights. Linear in the window.
void race(const ReplayWindow& window, uint64_t key, int64_t num, const KeySet& drawn,
          std::vector<eid_t>& out) {
  std::vector<std::pair<double, eid_t>> finish;
  for (eid_t e = window.begin; e < window.end; ++e) {
    if (drawn.contains(static_cast<uint64_t>(e))) continue;
    const double u = random_unit(key, static_cast<uint64_t>(e), 1);
    const double age = static_cast<double>(window.end - 1 - e);
    finish.emplace_back(std::log(-std::log1p(-u)) + age * (kLn2 / window.half_life), e);
  }
  std::nth_element(finish.begin(), finish.begin() + (num - 1), finish.end());
  for (int64_t i = 0; i < num; ++i) out.push_back(finish[static_cast<std::size_t>(i)].second);
}

}  // namespace

int64_t draw_replay(const ReplayWindow& window, uint64_t key, int64_t num, eid_t* out) {
  const int64_t size = std::max<int64_t>(window.end - window.begin, 0);
  num = std::min(num, size);
  KeySet drawn(num);
  std::vector<eid_t> chosen;
  const auto wanted = static_cast<std::size_t>(num);
  for (int64_t attempt = 0; chosen.size() < wanted && attempt < kTriesPerDraw * num; ++attempt) {
    const double u = random_unit(key, static_cast<uint64_t>(attempt), 0);
    const eid_t e = window.end - 1 - age_at(u, size, window.half_life);
    if (drawn.insert(static_cast<uint64_t>(e))) chosen.push_back(e);
  }
  if (chosen.size() < wanted) race(window, key, num - static_cast<int64_t>(chosen.size()), drawn, chosen);
  std::sort(chosen.begin(), chosen.end());
  std::copy(chosen.begin(), chosen.end(), out);
  return num;
}

}  // namespace tgflow
