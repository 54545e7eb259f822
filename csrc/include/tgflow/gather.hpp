// Rows of a table by id: read and written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tgflow {

/// `size` rows of `row_bytes` bytes, one after another; what they mean is the caller's business.
struct RowTable {
  const std::byte* rows;
  int64_t row_bytes;
  int64_t size;
};

/// Writes the rows of `id` [n] to `out` [n, row_bytes]; a negative id gives a row of zero bytes.
/// Throws std::out_of_range if an id is not below the table's size.
void gather_rows(const RowTable& table, const int64_t* id, int64_t n, std::byte* out);

/// Writes `from` [n, row_bytes] to the rows of `id` [n] at `rows`: all there, and each once.
void scatter_rows(std::byte* rows, int64_t row_bytes, const int64_t* id, int64_t n, const std::byte* from);

}  // namespace tgflow
