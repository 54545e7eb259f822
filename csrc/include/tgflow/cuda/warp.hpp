// A whole warp that works on one item, and rows of numbers that its lanes share. Device code alone.
#pragma once

#include "tgflow/cuda/tile.hpp"

namespace tgflow {

constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
/// The number of this warp, and how many there are, in the whole launch.
__device__ inline int64_t warp_index() { return thread_index() / kWarp; }
__device__ inline int64_t warp_count() { return gridDim.x * static_cast<int64_t>(blockDim.x) / kWarp; }

/// What lane `from` has in `value`.
template <typename T>
__device__ inline T from_lane(T value, int from) {
  return __shfl_sync(kWholeWarp, value, from);
}

/// In every lane the sum over all lanes, added up in one order.
template <typename T>
__device__ inline T warp_sum(T value) {
  for (int bit = kWarp / 2; bit > 0; bit /= 2) value += __shfl_xor_sync(kWholeWarp, value, bit);
  return value;
}

template <typename T>
__device__ inline T warp_max(T value) {
  for (int bit = kWarp / 2; bit > 0; bit /= 2) {
    const T other = __shfl_xor_sync(kWholeWarp, value, bit);
    value = other > value ? other : value;
  }
  return value;
}

/// Neighboring numbers of a row, read and written at once: rows begin at multiples of their size.
template <typename real, int kWidth>
struct alignas(sizeof(real) * kWidth) Pack {
  real at[kWidth];

  __device__ static Pack filled(real value) {
    Pack pack;
    for (int w = 0; w < kWidth; ++w) pack.at[w] = value;
    return pack;
  }
  __device__ static Pack load(const real* row, int64_t i) { return *reinterpret_cast<const Pack*>(row + i); }
  __device__ void store(real* row, int64_t i) const { *reinterpret_cast<Pack*>(row + i) = *this; }
  /// this += scale * x
  __device__ void add(real scale, const Pack& x) {
    for (int w = 0; w < kWidth; ++w) at[w] += scale * x.at[w];
  }
};

}  // namespace tgflow
