// Counter-based random numbers: a draw is a pure function of (key, item, draw), on any thread and device.
#pragma once

#include "tgflow/detail/philox.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// 64 uniform bits.
TGFLOW_HD inline uint64_t random_bits(uint64_t key, uint64_t item, uint64_t draw) {
  const Philox4 r = philox(key, {{static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32),
                                  static_cast<uint32_t>(item), static_cast<uint32_t>(item >> 32)}});
  return static_cast<uint64_t>(r.word[1]) << 32 | r.word[0];
}

/// The high half of a 64x64-bit product.
TGFLOW_HD inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffULL, a1 = a >> 32, b0 = b & 0xffffffffULL, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  const uint64_t carry = a0 * b1 + (middle & 0xffffffffULL);
  return a1 * b1 + (middle >> 32) + (carry >> 32);
}

/// An integer in [0, n), n >= 1; off uniform by less than n / 2^64.
TGFLOW_HD inline int64_t random_below(uint64_t key, uint64_t item, uint64_t draw, int64_t n) {
  return static_cast<int64_t>(multiply_high(random_bits(key, item, draw), static_cast<uint64_t>(n)));
}

/// A double in [0, 1) with 53 random bits.
TGFLOW_HD inline double random_unit(uint64_t key, uint64_t item, uint64_t draw) {
  return static_cast<double>(random_bits(key, item, draw) >> 11) * 0x1p-53;
}

}  // namespace tgflow
