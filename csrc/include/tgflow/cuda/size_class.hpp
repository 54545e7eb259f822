// Memory that was given back, by size: pieces of entries and rooms of directories. Device code alone.
#pragma once

#include "tgflow/detail/insert_run.hpp"

namespace tgflow {

constexpr int kPieceClasses = 160;
constexpr int kClasses = kPieceClasses + 32;  ///< Then one for each power of two that a directory may be.
constexpr int kNoClass = 255;                 ///< Marks what is not there.

/// The class of pieces with this capacity, which `tail_capacity` gave: at most 64, or of 4 significant bits.
TGFLOW_HD inline int piece_class(int64_t capacity) {
  int exponent = 0;
  int64_t digits = capacity;
  for (; digits > 64 || (exponent > 0 && digits > 16); digits >>= 1) ++exponent;
  return exponent == 0 ? static_cast<int>(digits) : 56 + 8 * exponent + static_cast<int>(digits - 8);
}

/// The class of directories with room for `max_blocks`, one less than a power of two.
TGFLOW_HD inline int room_class(uint32_t max_blocks) {
  int exponent = 0;
  for (uint64_t size = uint64_t{max_blocks} + 1; size > 1; size >>= 1) ++exponent;
  return kPieceClasses + exponent;
}

/// What is free: class `c` has the `count[c]` items from `items[begin[c]]` on.
struct FreeItems {
  const uint64_t* items;  ///< Places of pieces, addresses of directories.
  const int64_t* begin;
  int64_t* count;

  /// Whether there is a `rank`th item of a class, from 0.
  TGFLOW_HD bool has(int size_class, int64_t rank) const { return rank < count[size_class]; }
  /// The last item first, so that what is left stays in front.
  TGFLOW_HD uint64_t item(int size_class, int64_t rank) const {
    return items[begin[size_class] + count[size_class] - 1 - rank];
  }
};

}  // namespace tgflow
