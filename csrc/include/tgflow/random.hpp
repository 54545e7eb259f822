// Counter-based random numbers: a draw is a pure function of (key, item, draw), on any thread and device.
#pragma once

#include "tgflow/detail/mix.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

struct Random4 {
  uint32_t word[4];
};

constexpr int kPhiloxRounds = 10;

/// The 128-bit counter (item, draw) before the first round.
TGFLOW_HD inline Random4 philox_counter(uint64_t item, uint64_t draw) {
  return {{static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), static_cast<uint32_t>(item),
           static_cast<uint32_t>(item >> 32)}};
}

TGFLOW_HD inline Random4 philox_round(const Random4& r, uint32_t k0, uint32_t k1) {
  const uint64_t a = 0xD2511F53ULL * r.word[0];
  const uint64_t b = 0xCD9E8D57ULL * r.word[2];
  return {{static_cast<uint32_t>(b >> 32) ^ r.word[1] ^ k0, static_cast<uint32_t>(b),
           static_cast<uint32_t>(a >> 32) ^ r.word[3] ^ k1, static_cast<uint32_t>(a)}};
}

TGFLOW_HD inline void next_philox_key(uint32_t& k0, uint32_t& k1) {
  k0 += 0x9E3779B9u;
  k1 += 0xBB67AE85u;
}

/// Philox4x32-10 (Salmon et al., SC'11): the 128-bit counter (item, draw) under a 64-bit key.
TGFLOW_HD inline Random4 philox(uint64_t key, uint64_t item, uint64_t draw) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Random4 r = philox_counter(item, draw);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    r = philox_round(r, k0, k1);
    next_philox_key(k0, k1);
  }
  return r;
}

/// 64 uniform bits.
TGFLOW_HD inline uint64_t random_bits(uint64_t key, uint64_t item, uint64_t draw) {
  const Random4 r = philox(key, item, draw);
  return static_cast<uint64_t>(r.word[1]) << 32 | r.word[0];
}

/// The high half of a 64x64-bit product.
TGFLOW_HD inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffULL, a1 = a >> 32, b0 = b & 0xffffffffULL, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  const uint64_t carry = a0 * b1 + (middle & 0xffffffffULL);
  return a1 * b1 + (middle >> 32) + (carry >> 32);
}

/// An integer in [0, n), n >= 1; bias below n / 2^64.
TGFLOW_HD inline int64_t random_below(uint64_t key, uint64_t item, uint64_t draw, int64_t n) {
  return static_cast<int64_t>(multiply_high(random_bits(key, item, draw), static_cast<uint64_t>(n)));
}

/// The key of one purpose of a key's draws: `derive_key(key, word)` of tgflow/base/keys.py.
inline uint64_t derive_key(uint64_t key, uint64_t word) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;
  return mix64((mix64((2 + kStep) ^ key) + kStep) ^ word);
}

/// Whether a position of the log is the chosen one of its `every` consecutive ones.
inline bool is_chosen(int64_t position, int64_t every) {
  return position % every == random_below(0, static_cast<uint64_t>(position / every), 0, every);
}

/// A double in [0, 1) with 53 random bits.
TGFLOW_HD inline double random_unit(uint64_t key, uint64_t item, uint64_t draw) {
  return static_cast<double>(random_bits(key, item, draw) >> 11) * 0x1p-53;
}

}  // namespace tgflow
