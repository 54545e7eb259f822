// A table for kernels. Device code only.
#pragma once

#include "tgflow/detail/atomic.hpp"

namespace tgflow {

/// Address and number of a table's rows: in device memory, which a captured launch reads each
/// time, and written in stream order when the table grows or moves.
struct TableView {
  const char* rows;  ///< A multiple of 16.
  int64_t size;      ///< Rows.
};

/// Reads a view. The rows are read after the size: rows below a new size are there.
__device__ inline TableView read_view(const TableView* view) {
  const int64_t size = load_acquire(&view->size);
  return {load_acquire(&view->rows), size};
}

}  // namespace tgflow
