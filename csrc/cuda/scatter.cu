// Rows of a table overwritten by id, in device memory or in host memory in place, in the order of a stream:
// one kernel for each width in which rows can be written. And what kernels find a table by.
#include "tgflow/cuda/table_view.hpp"
#include "tgflow/cuda/tile.hpp"

using namespace tgflow;

/// What a scatter reads and writes; tgflow/cuda/rows.py has it field by field.
struct RowScatter {
  const TableView* table;
  int64_t row_bytes;
  const int64_t* id;  ///< The row of one that comes twice becomes some of both.
  int64_t num_ids;
  const char* from;  ///< [num_ids, row_bytes]
  int64_t* wrong;    ///< Becomes an id that is not in the table, whose row is left out.
  int64_t lanes;     ///< That share a row: a power of two up to a warp.
};

/// Copies rows, in parts that their addresses and widths are multiples of.
template <typename Part>
__device__ void scatter_rows(const RowScatter& s) {
  const TableView table = read_view(s.table);
  const int64_t lane = thread_index() % s.lanes;
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x) / s.lanes;
  const int64_t parts = s.row_bytes / static_cast<int64_t>(sizeof(Part));
  for (int64_t i = thread_index() / s.lanes; i < s.num_ids; i += step) {
    const int64_t id = s.id[i];
    if (id < 0 || id >= table.size) {
      *s.wrong = id;
      continue;
    }
    Part* row = reinterpret_cast<Part*>(const_cast<char*>(table.rows) + id * s.row_bytes);
    const Part* from = reinterpret_cast<const Part*>(s.from + i * s.row_bytes);
    for (int64_t p = lane; p < parts; p += s.lanes) row[p] = from[p];
  }
}

/// One thread: says where a table's rows are now, and how many.
extern "C" __global__ void table_publish(TableView* view, const char* rows, int64_t size) {
  store_release(&view->rows, rows);
  store_release(&view->size, size);
}

extern "C" __global__ void __launch_bounds__(256) scatter_by_16(RowScatter scatter) {
  scatter_rows<longlong2>(scatter);
}
extern "C" __global__ void __launch_bounds__(256) scatter_by_4(RowScatter scatter) {
  scatter_rows<uint32_t>(scatter);
}
extern "C" __global__ void __launch_bounds__(256) scatter_by_1(RowScatter scatter) {
  scatter_rows<uint8_t>(scatter);
}
