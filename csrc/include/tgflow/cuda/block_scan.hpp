// Sums over the threads of a block. Device code alone.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// The sum of `own` over the threads before this one, of at most 1024; `all`: over all of the block, which
/// come here together.
__device__ inline int32_t block_scan(int32_t own, int32_t& all) {
  __shared__ int32_t sums[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  int32_t sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int32_t before = 0;
  all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  __syncthreads();  // the sums may be overwritten now
  return before + sum - own;
}

}  // namespace tgflow
