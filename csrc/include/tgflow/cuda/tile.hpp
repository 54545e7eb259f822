// A few neighboring lanes of a warp that work on one item together. Device code alone.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

constexpr int kWarp = 32;

/// The number of this thread in the whole launch.
__device__ inline int64_t thread_index() {
  return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
}

/// `kLanes` lanes, a power of two below 32; all of them must come to every call below.
template <int kLanes>
struct Tile {
  int lane;       ///< Of this thread, in [0, kLanes).
  unsigned mask;  ///< Of the tile's lanes in their warp.

  __device__ static Tile here() {
    const int in_warp = static_cast<int>(threadIdx.x) % kWarp;
    return {in_warp % kLanes, ((1u << kLanes) - 1) << (in_warp / kLanes * kLanes)};
  }
  /// The number of this tile, and how many there are, in the whole launch.
  __device__ static int64_t index() { return thread_index() / kLanes; }
  __device__ static int64_t count() { return gridDim.x * static_cast<int64_t>(blockDim.x) / kLanes; }

  /// What lane `from` has in `value`.
  template <typename T>
  __device__ T broadcast(T value, int from) const {
    return __shfl_sync(mask, value, from, kLanes);
  }
  /// What the first lane has: all lanes read the same memory, but perhaps not before and after the same
  /// write.
  template <typename T>
  __device__ T agreed(T value) const {
    return broadcast(value, 0);
  }
  template <typename T>
  __device__ T* agreed(T* address) const {
    return reinterpret_cast<T*>(broadcast(reinterpret_cast<unsigned long long>(address), 0));
  }
  __device__ bool any(bool holds) const { return __any_sync(mask, holds) != 0; }
  /// In how many lanes it holds.
  __device__ int count_of(bool holds) const { return __popc(__ballot_sync(mask, holds)); }
  /// In how many lanes before this one it holds.
  __device__ int rank_of(bool holds) const {
    const unsigned before = (1u << (threadIdx.x % kWarp)) - 1;
    return __popc(__ballot_sync(mask, holds) & before);
  }
  /// What a lane wrote before, the others read after.
  __device__ void sync() const { __syncwarp(mask); }
};

}  // namespace tgflow
