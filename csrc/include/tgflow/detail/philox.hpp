// Philox4x32-10: random numbers that are a function of a key and a counter (Salmon et al., SC 2011, "Parallel
// random numbers: as easy as 1, 2, 3"). No state, so no thread ever matters. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

struct Philox4 {
  uint32_t word[4];
};

TGFLOW_HD inline Philox4 philox(uint64_t key, Philox4 c) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c.word[0];
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c.word[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// The draws of one item (a query): draw `d` is a function of (key, item, d) alone.
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
    if (d / 4 != cached_ || attempt != cached_attempt_) {
      words_ =
          philox(key_, {{static_cast<uint32_t>(item_), static_cast<uint32_t>(item_ >> 32), d / 4, attempt}});
      cached_ = d / 4;
      cached_attempt_ = attempt;
    }
    return words_.word[d % 4];
  }

  uint64_t key_;
  uint64_t item_;
  Philox4 words_{};
  uint32_t cached_ = 0xffffffffu;
  uint32_t cached_attempt_ = 0;
};

}  // namespace tgflow
