// Rows of a table overwritten by id, in device memory or in host memory in place, in the order of a stream:
// one kernel for each width in which rows can be written. And what kernels find a table by.
#include "tgflow/cuda/row_scatter.hpp"

using namespace tgflow;

/// One thread: says where a table's rows are now, and how many.
extern "C" __global__ void table_publish(TableView* view, const char* rows, int64_t size) {
  store_release(&view->rows, rows);
  store_release(&view->size, size);
}

extern "C" __global__ void __launch_bounds__(256) scatter_by_16(RowScatter scatter) {
  scatter_rows<longlong2>(scatter);
}
extern "C" __global__ void __launch_bounds__(256) scatter_by_8(RowScatter scatter) {
  scatter_rows<uint64_t>(scatter);
}
extern "C" __global__ void __launch_bounds__(256) scatter_by_4(RowScatter scatter) {
  scatter_rows<uint32_t>(scatter);
}
extern "C" __global__ void __launch_bounds__(256) scatter_by_2(RowScatter scatter) {
  scatter_rows<uint16_t>(scatter);
}
extern "C" __global__ void __launch_bounds__(256) scatter_by_1(RowScatter scatter) {
  scatter_rows<uint8_t>(scatter);
}
