// Shared neighbors and walks of pairs against their definitions.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"
#include "tgflow/co_occurrence.hpp"
#include "tgflow/walk_features.hpp"

namespace tgflow {
namespace {

TEST(tokens_are_counted_in_both_sequences) {
  constexpr int64_t kRows = 300, kOthers = 9, kLength = 1 + kOthers;
  std::mt19937_64 engine(1);
  std::vector<int64_t> self, other, src, dst;
  std::vector<char> mask;
  for (int64_t r = 0; r < kRows; ++r) {
    self.push_back(static_cast<int64_t>(engine() % 12) << 32);
    src.push_back(static_cast<int64_t>(engine() % kRows));
    dst.push_back(static_cast<int64_t>(engine() % kRows));
    for (int64_t j = 0; j < kOthers; ++j) {
      other.push_back(static_cast<int64_t>(engine() % 12) << 32);
      mask.push_back(engine() % 4 != 0);
    }
  }
  const Sequences sequences{kRows, kOthers, self.data(), other.data(),
                            reinterpret_cast<const bool*>(mask.data())};
  std::vector<int32_t> out(kRows * 4 * kLength, -7);
  co_occurrence(sequences, src.data(), dst.data(), kRows, out.data());
  const auto token = [&](int64_t row, int64_t i) {
    return i == 0 ? self[row] : other[row * kOthers + i - 1];
  };
  const auto there = [&](int64_t row, int64_t i) { return i == 0 || mask[row * kOthers + i - 1] != 0; };
  for (int64_t p = 0; p < kRows; ++p) {
    const int64_t rows[2] = {src[p], dst[p]};
    for (int side = 0; side < 2; ++side) {
      for (int64_t i = 0; i < kLength; ++i) {
        for (int in = 0; in < 2; ++in) {
          int32_t count = 0;
          for (int64_t j = 0; j < kLength; ++j) {
            count += there(rows[side], i) && there(rows[in], j) && token(rows[side], i) == token(rows[in], j);
          }
          CHECK(out[((p * 2 + side) * kLength + i) * 2 + in] == count);
        }
      }
    }
  }
}

TEST(products_of_walks) {
  constexpr int64_t kRows = 30, kDim = 13, kHops = 2, kPairs = 700, kSides = 2 * (1 + kHops);
  std::mt19937_64 engine(1);
  std::normal_distribution<float> draw;
  std::vector<float> base(kRows * kDim), state(kRows * kHops * kDim), left_a, left_b;
  for (float& x : base) x = draw(engine);
  for (float& x : state) x = draw(engine);
  std::vector<int64_t> a, b;
  for (int64_t p = 0; p < kPairs; ++p) {
    a.push_back(p % 11 == 3 ? -1 : static_cast<int64_t>(engine() % kRows));
    b.push_back(static_cast<int64_t>(engine() % kRows));
    left_a.push_back(std::exp(-std::abs(draw(engine))));
    left_b.push_back(p % 5 == 0 ? 0.0f : 1.0f);
  }
  std::vector<float> out(kPairs * num_walk_products(kHops), NAN);
  walk_features({kRows, kDim, kHops, base.data(), state.data()},
                {kPairs, a.data(), b.data(), left_a.data(), left_b.data()}, out.data());
  const auto walk = [&](int64_t p, int64_t side, int64_t i) {
    const int64_t row = side <= kHops ? a[p] : b[p], hops = side % (1 + kHops);
    const double left = std::pow(side <= kHops ? left_a[p] : left_b[p], static_cast<double>(hops));
    return left * (hops == 0 ? base[row * kDim + i] : state[(row * kHops + hops - 1) * kDim + i]);
  };
  for (int64_t p = 0, at = 0; p < kPairs; ++p) {
    for (int64_t s = 0; s < kSides; ++s) {
      for (int64_t r = s; r < kSides; ++r, ++at) {
        double product = 0;
        for (int64_t i = 0; a[p] >= 0 && i < kDim; ++i) product += walk(p, s, i) * walk(p, r, i);
        CHECK(std::abs(out[at] - std::log1p(std::max(product, 0.0))) < 1e-5);
      }
    }
  }
}

TEST(no_pairs) {
  co_occurrence({0, 3, nullptr, nullptr, nullptr}, nullptr, nullptr, 0, nullptr);
  walk_features({0, 4, 3, nullptr, nullptr}, {0, nullptr, nullptr, nullptr, nullptr}, nullptr);
}

}  // namespace
}  // namespace tgflow
