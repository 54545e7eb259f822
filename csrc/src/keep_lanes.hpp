// Draws of dropout side by side, as loops over lanes that compilers turn into vector code.
#pragma once

#include "tgflow/detail/keep.hpp"
#include "tgflow/detail/simd.hpp"

namespace tgflow {

constexpr int64_t kKeepLanes = 16;                       ///< Draws side by side.
constexpr int64_t kKeepGroup = kKeepLanes * kWords;      ///< Elements that they decide about.
constexpr int64_t kKeepGrain = 4096 / kKeepGroup;        ///< Groups that are worth waking a thread for.

/// The words of draws `first` to `first + kKeepLanes` of a row: `keep_words` for each lane.
TGFLOW_INLINE void words_of(uint64_t key, int64_t row, int64_t first, uint32_t (&word)[kWords][kKeepLanes]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int64_t l = 0; l < kKeepLanes; ++l) {
    const Random4 counter = philox_counter(static_cast<uint64_t>(first + l), static_cast<uint64_t>(row));
    for (int64_t w = 0; w < kWords; ++w) word[w][l] = counter.word[w];
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int64_t l = 0; l < kKeepLanes; ++l) {
      const Random4 r = philox_round({{word[0][l], word[1][l], word[2][l], word[3][l]}}, k0, k1);
      word[0][l] = r.word[0];
      word[1][l] = r.word[1];
      word[2][l] = r.word[2];
      word[3][l] = r.word[3];
    }
    next_philox_key(k0, k1);
  }
}

/// The factors of the elements of one group of a row, in order.
TGFLOW_INLINE void group_factors(uint64_t key, const Dropout& dropout, int64_t row, int64_t group,
                                 float (&factor)[kKeepGroup]) {
  uint32_t word[kWords][kKeepLanes];
  words_of(key, row, group * kKeepLanes, word);
  for (int64_t w = 0; w < kWords; ++w) {
    for (int64_t l = 0; l < kKeepLanes; ++l) factor[l * kWords + w] = dropout.factor(word[w][l]);
  }
}

}  // namespace tgflow
