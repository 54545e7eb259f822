// Rows of a table by id.
#pragma once

#include <cstdint>

namespace tgflow {

/// `size` rows of `dim` floats.
struct RowTable {
  const float* rows;
  int64_t dim;
  int64_t size;
};

/// Writes the rows of `id` [n] to `out` [n, dim]; a negative id gives a row of zeros.
/// Throws std::out_of_range if an id is not below the table's size.
void gather_rows(const RowTable& table, const int64_t* id, int64_t n, float* out);

}  // namespace tgflow
