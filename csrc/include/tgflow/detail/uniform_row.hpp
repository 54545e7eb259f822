// The draws of the `uniform` and `window` samplers, one query at a time. No `std::` here.
#pragma once

#include "tgflow/detail/recent_row.hpp"
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

constexpr int64_t kFewDraws = 16;

/// Draws `k` numbers as Floyd's algorithm does and writes them, largest first; false if two of them are
/// equal. Free of branches on what is drawn, which would be mispredicted; fixed bounds let the compiler use
/// vectors.
TGFLOW_HD inline bool draw_few(Draws& draws, int32_t size, int32_t k, int64_t* out) {
  int32_t drawn[kFewDraws];
  for (int32_t i = 0; i < kFewDraws; ++i) drawn[i] = -1;
  for (int32_t i = 0; i < k; ++i) {
    const uint64_t range = static_cast<uint64_t>(size - k + i) + 1;
    drawn[i] = static_cast<int32_t>(draws.below(static_cast<uint32_t>(i), range));
  }
  int32_t num_equal = 0;
  for (int32_t i = 0; i < k; ++i) {
    const int32_t number = drawn[i];
    int32_t num_larger = 0;
    for (int32_t j = 0; j < kFewDraws; ++j) {
      num_larger += drawn[j] > number;
      num_equal += drawn[j] == number;
    }
    out[num_larger] = number;
  }
  return num_equal == k;
}

/// Draws `k` distinct numbers below `size` (`k < size`) into `out`, largest first; each subset is equally
/// likely. Floyd's algorithm (Bentley & Floyd, CACM 1987): the newest number, size - 1, is as likely as any.
TGFLOW_HD inline void draw_distinct(Draws& draws, int64_t size, int64_t k, int64_t* out) {
  if (k <= kFewDraws && size <= 0x7fffffff && size > 4 * k &&  // equal numbers are rare
      draw_few(draws, static_cast<int32_t>(size), static_cast<int32_t>(k), out)) {
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    const int64_t top = size - k + i;  // larger than all drawn so far
    const int64_t number = draws.below(static_cast<uint32_t>(i), static_cast<uint64_t>(top) + 1);
    int64_t place = i;
    while (place > 0 && out[place - 1] < number) --place;
    const bool taken = place > 0 && out[place - 1] == number;
    if (taken) place = 0;
    for (int64_t j = i; j > place; --j) out[j] = out[j - 1];
    out[place] = taken ? top : number;
  }
}

/// Chooses `out.k` of the entries numbered [first, end), more than `out.k`: their numbers, largest first,
/// wait in row `i` of `out.eid` for `locate_numbered`.
TGFLOW_HD inline void uniform_draw(int64_t first, int64_t end, Draws draws, int64_t i,
                                   const NeighborRows& out) {
  int64_t* numbers = out.eid + i * out.k;
  draw_distinct(draws, end - first, out.k, numbers);
  if (first == 0) return;
  for (int64_t j = 0; j < out.k; ++j) numbers[j] += first;
}

}  // namespace tgflow
