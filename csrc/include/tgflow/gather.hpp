// Reading and writing of a table's rows by id.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tgflow {

/// Prefetches all cache lines of a row.
inline void prefetch_row(const void* row, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(row) + at);
}

/// Number of rows at random addresses to prefetch before they are read.
inline int64_t rows_ahead(std::size_t bytes) {
  return static_cast<int64_t>(std::clamp<std::size_t>((6 << 10) / bytes, 2, 32));
}

/// `size` consecutive rows of `row_bytes` bytes of any meaning.
struct RowTable {
  const std::byte* rows;
  int64_t row_bytes;
  int64_t size;
};

/// Writes the rows of `id` [n] to `out` [n, row_bytes]; a negative id gives a row of zero bytes.
/// Throws std::out_of_range if an id is not below the table's size.
void gather_rows(const RowTable& table, const int64_t* id, int64_t n, std::byte* out);

/// Writes `from` [n, row_bytes] to the rows of `id` [n] at `rows`: ids are valid and unique.
void scatter_rows(std::byte* rows, int64_t row_bytes, const int64_t* id, int64_t n, const std::byte* from);

}  // namespace tgflow
