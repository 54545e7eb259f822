// A table as kernels find it. Device code alone.
#pragma once

#include "tgflow/detail/atomic.hpp"

namespace tgflow {

/// Where the rows of a table are and how many: kept in device memory, which a captured launch reads each
/// time, and written in the order of a stream as the table grows or moves.
struct TableView {
  const char* rows;  ///< A multiple of 16.
  int64_t size;      ///< Rows.
};

/// What a table is now. The rows are read behind the size: where it is a new one, they are there.
__device__ inline TableView read_view(const TableView* view) {
  const int64_t size = load_acquire(&view->size);
  return {load_acquire(&view->rows), size};
}

}  // namespace tgflow
