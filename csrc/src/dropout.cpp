#include "tgflow/dropout.hpp"

#include <algorithm>

#include "tgflow/detail/keep.hpp"
#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kLanes = 16;               // draws side by side
constexpr int64_t kGroup = kLanes * kWords;  // elements that they decide about
constexpr int64_t kGrain = 4096 / kGroup;    // groups that are worth waking a thread for

/// The words of draws `first` to `first + kLanes` of a row: `keep_words` for each lane, written as loops over
/// lanes that compilers turn into vector code.
TGFLOW_INLINE void words_of(uint64_t key, int64_t row, int64_t first, uint32_t (&word)[kWords][kLanes]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int64_t l = 0; l < kLanes; ++l) {
    const Random4 counter = philox_counter(static_cast<uint64_t>(first + l), static_cast<uint64_t>(row));
    for (int64_t w = 0; w < kWords; ++w) word[w][l] = counter.word[w];
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const Random4 r = philox_round({{word[0][l], word[1][l], word[2][l], word[3][l]}}, k0, k1);
      word[0][l] = r.word[0];
      word[1][l] = r.word[1];
      word[2][l] = r.word[2];
      word[3][l] = r.word[3];
    }
    next_philox_key(k0, k1);
  }
}

TGFLOW_INLINE void fill_groups(uint64_t key, const Dropout& dropout, int64_t row, int64_t row_size,
                               float* out, int64_t begin, int64_t end) {
  uint32_t word[kWords][kLanes];
  float factor[kGroup];
  for (int64_t g = begin; g < end; ++g) {
    words_of(key, row, g * kLanes, word);
    for (int64_t w = 0; w < kWords; ++w) {
      for (int64_t l = 0; l < kLanes; ++l) factor[l * kWords + w] = dropout.factor(word[w][l]);
    }
    std::copy_n(factor, std::min(kGroup, row_size - g * kGroup), out + g * kGroup);
  }
}

TGFLOW_AVX2 void fill_groups_avx2(uint64_t key, const Dropout& dropout, int64_t row, int64_t row_size,
                                  float* out, int64_t begin, int64_t end) {
  fill_groups(key, dropout, row, row_size, out, begin, end);
}

void fill_groups_plain(uint64_t key, const Dropout& dropout, int64_t row, int64_t row_size, float* out,
                       int64_t begin, int64_t end) {
  fill_groups(key, dropout, row, row_size, out, begin, end);
}

}  // namespace

void keep_factors(uint64_t key, double rate, int64_t num_rows, int64_t row_size, float* out) {
  const auto fill = TGFLOW_HAS_AVX2() ? fill_groups_avx2 : fill_groups_plain;
  const Dropout dropout = dropout_of(rate);
  for (int64_t row = 0; row < num_rows; ++row) {
    parallel_for((row_size + kGroup - 1) / kGroup, kGrain, [&](int64_t begin, int64_t end) {
      fill(key, dropout, row, row_size, out + row * row_size, begin, end);
    });
  }
}

}  // namespace tgflow
