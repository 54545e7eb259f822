// Elements kept by dropout: a function of (key, row, element), equal on every device. No `std::`.
#pragma once

#include "tgflow/random.hpp"

namespace tgflow {

constexpr int64_t kWords = 4;  ///< Elements per draw.

/// Elements whose random word is below `threshold` are dropped, the others scaled up to keep the mean.
struct Dropout {
  uint32_t threshold;
  float scale;

  TGFLOW_HD float factor(uint32_t word) const { return word < threshold ? 0.0f : scale; }
};

/// The parameters for a rate in [0, 1).
TGFLOW_HD inline Dropout dropout_of(double rate) {
  return {static_cast<uint32_t>(rate * 0x1p32), static_cast<float>(1 / (1 - rate))};
}

/// The words of elements 4 * i to 4 * i + 3 of a row.
TGFLOW_HD inline Random4 keep_words(uint64_t key, int64_t row, int64_t i) {
  return philox(key, static_cast<uint64_t>(i), static_cast<uint64_t>(row));
}

}  // namespace tgflow
