// Shared neighbors and walks of pairs against their definitions.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"
#include "tgflow/co_occurrence.hpp"

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

TEST(no_pairs) { co_occurrence({0, 3, nullptr, nullptr, nullptr}, nullptr, nullptr, 0, nullptr); }

}  // namespace
}  // namespace tgflow
