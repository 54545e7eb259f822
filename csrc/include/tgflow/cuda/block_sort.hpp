// Sorting by the threads of a block. Device code alone.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// Sorts `size` keys in shared memory, a power of two of them: a bitonic network, which needs no more memory.
/// Every thread of the block comes.
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

}  // namespace tgflow
