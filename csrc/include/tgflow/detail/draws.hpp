// The random draws of one query. No `std::` here.
#pragma once

#include "tgflow/random.hpp"

namespace tgflow {

/// Draw `d` is a function of (key, item, d) alone: no state, so no thread ever matters.
class Draws {
 public:
  TGFLOW_HD Draws(uint64_t key, int64_t item) : key_(key), item_(static_cast<uint64_t>(item)) {}

  /// Draw `d`: uniform in [0, range), exactly, 1 <= range <= 2^32 (Lemire 2019). Cheapest with `d` ascending.
  TGFLOW_HD uint32_t below(uint32_t d, uint64_t range) {
    uint64_t product = word(d, 0) * range;
    if (static_cast<uint32_t>(product) < range) {
      const uint32_t threshold = static_cast<uint32_t>((1ull << 32) % range);
      for (uint32_t attempt = 1; static_cast<uint32_t>(product) < threshold; ++attempt) {
        product = word(d, attempt) * range;
      }
    }
    return static_cast<uint32_t>(product >> 32);
  }

 private:
  TGFLOW_HD uint64_t word(uint32_t d, uint32_t attempt) {
    const uint64_t block = static_cast<uint64_t>(attempt) << 32 | d / 4;
    if (block != cached_) words_ = philox(key_, item_, block);
    cached_ = block;
    return words_.word[d % 4];
  }

  uint64_t key_;
  uint64_t item_;
  Random4 words_{};
  uint64_t cached_ = ~0ull;
};

}  // namespace tgflow
