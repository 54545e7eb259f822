// Sums over lists of slots, one list per row: each in the order of its slots, so that results are
// deterministic. Device code only.
#pragma once

#include "tgflow/cuda/warp.hpp"

namespace tgflow {

/// The slots of each row: those of row r are `slot[start[r]]` to `slot[start[r + 1]]`.
struct RowLists {
  const int64_t* start;  ///< [num_rows + 1].
  const int64_t* slot;
  int64_t num_rows;
};

constexpr int kListWarps = 8;  ///< Warps per thread block.
constexpr int kTogether = 4;
constexpr int64_t kLongList = 64;  ///< Rows with more slots are summed by a thread block.

/// Fills out[r], `width` wide, with the sum of `terms` over the slots of row r. `terms.add(sum, slot, i)`
/// adds a slot's numbers from column `i` on. One warp sums a short list, a thread block a long one.
template <int kWidth, typename Terms>
__device__ inline void sum_lists(const RowLists& lists, int64_t width, const Terms& terms, float* out) {
  using Sum = Pack<kWidth>;
  __shared__ Sum part[kListWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  const auto length = [&](int64_t r) { return lists.start[r + 1] - lists.start[r]; };
  const auto sum_of = [&](int64_t begin, int64_t end, int64_t i) {
    Sum sum = Sum::filled(0);
    int64_t s = begin;
    for (; s + kTogether <= end; s += kTogether) {  // loads their rows concurrently
      int64_t slot[kTogether];
      for (int u = 0; u < kTogether; ++u) slot[u] = lists.slot[s + u];
      for (int u = 0; u < kTogether; ++u) terms.add(sum, slot[u], i);
    }
    for (; s < end; ++s) terms.add(sum, lists.slot[s], i);
    return sum;
  };
  for (int64_t first = int64_t{blockIdx.x} * kListWarps; first < lists.num_rows;
       first += int64_t{gridDim.x} * kListWarps) {
    const int64_t own = first + warp;
    if (own < lists.num_rows && length(own) <= kLongList) {
      for (int64_t i = lane * kWidth; i < width; i += kWarp * kWidth) {
        sum_of(lists.start[own], lists.start[own + 1], i).store(out + own * width, i);
      }
    }
    for (int64_t r = first; r < first + kListWarps && r < lists.num_rows; ++r) {
      const int64_t size = length(r);
      if (size <= kLongList) continue;
      const int64_t begin = lists.start[r] + size * warp / kListWarps;
      const int64_t end = lists.start[r] + size * (warp + 1) / kListWarps;
      for (int64_t column = 0; column < width; column += kWarp * kWidth) {
        const int64_t i = column + lane * kWidth;
        if (i < width) part[warp][lane] = sum_of(begin, end, i);
        __syncthreads();
        if (warp == 0 && i < width) {
          Sum sum = part[0][lane];
          for (int w = 1; w < kListWarps; ++w) sum.add(1, part[w][lane]);
          sum.store(out + r * width, i);
        }
        __syncthreads();
      }
    }
  }
}

}  // namespace tgflow
