// Rows of a table by id, from device memory or from host memory in place: one kernel for each width in which
// rows can be written. All read 16 bytes a lane, from whole 128-byte lines.
#include "tgflow/cuda/row_gather.hpp"

using namespace tgflow;

extern "C" __global__ void __launch_bounds__(256) gather_by_16(RowGather gather) {
  gather_rows<longlong2>(gather);
}
extern "C" __global__ void __launch_bounds__(256) gather_by_8(RowGather gather) {
  gather_rows<uint64_t>(gather);
}
extern "C" __global__ void __launch_bounds__(256) gather_by_4(RowGather gather) {
  gather_rows<uint32_t>(gather);
}
extern "C" __global__ void __launch_bounds__(256) gather_by_2(RowGather gather) {
  gather_rows<uint16_t>(gather);
}
extern "C" __global__ void __launch_bounds__(256) gather_by_1(RowGather gather) {
  gather_rows<uint8_t>(gather);
}
