// Sorting, prefix sums and work shares of a thread block's threads. Device code only.
#pragma once

#include "tgflow/cuda/warp.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Sorts `size` keys in shared memory, a power of two of them, by a bitonic network, in place.
/// All threads of the block must call it.
__device__ inline void sort_keys(uint64_t* keys, int size) {
  const int first = static_cast<int>(threadIdx.x), stride = static_cast<int>(blockDim.x);
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = first; i < size / 2; i += stride) {
        const int low = 2 * step * (i / step) + i % step, high = low + step;
        const bool up = (low & run) == 0;
        const uint64_t a = keys[low], b = keys[high];
        if ((a > b) == up) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

/// A thread's share of `size` items: consecutive ones, so that it can sum them first.
struct Share {
  int64_t begin, end;

  __device__ static Share of(int64_t size) {
    const int64_t each = (size + blockDim.x - 1) / blockDim.x;
    const int64_t begin = each * threadIdx.x < size ? each * threadIdx.x : size;
    return {begin, begin + each < size ? begin + each : size};
  }
};

/// Returns the sum of the numbers of all earlier threads, and in `total` that of all. All threads of the
/// block must call it, in whole warps; `sums` is shared, with room for one number per warp.
__device__ inline int64_t sum_before(int64_t mine, int64_t* sums, int64_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  long long through = mine;
  for (int step = 1; step < kWarp; step *= 2) {
    const long long other = __shfl_up_sync(0xffffffffu, through, step);
    if (lane >= step) through += other;
  }
  __syncthreads();  // the previous call may still read `sums`
  if (lane == kWarp - 1) sums[warp] = through;
  __syncthreads();
  int64_t before = through - mine;
  *total = 0;
  for (int w = 0; w < num_warps; ++w) {
    if (w < warp) before += sums[w];
    *total += sums[w];
  }
  return before;
}

}  // namespace tgflow
