// Copying rows that lie anywhere in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tgflow {

/// Asks for all cache lines of a row.
inline void prefetch_row(const char* row, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(row + offset);
}

/// How many rows are asked for before they are read.
inline int64_t rows_ahead(std::size_t bytes) {
  constexpr std::size_t kAheadBytes = 6 << 10;
  return static_cast<int64_t>(std::clamp<std::size_t>(kAheadBytes / bytes, 2, 32));
}

/// Null is a row of zeros.
inline void copy_row(const char* from, std::size_t bytes, char* to) {
  if (from == nullptr) {
    std::memset(to, 0, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace tgflow
