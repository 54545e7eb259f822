// Tiles of a few lanes and whole warps that work on one item, and packs of numbers that lanes share. Device
// code only.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

constexpr int kWarp = 32;

/// Defines the kernels NAME_by_4 and NAME_by_1, each a call of the template NAME of this width.
#define KERNELS_BY_WIDTH(threads, name, parameters, arguments)                                        \
  extern "C" __global__ void __launch_bounds__(threads) name##_by_4 parameters { name<4> arguments; } \
  extern "C" __global__ void __launch_bounds__(threads) name##_by_1 parameters { name<1> arguments; }

/// Defines the kernels NAME_by_16, NAME_by_4 and NAME_by_1, of the template NAME of a type of so many bytes.
#define KERNELS_BY_PART(threads, name, parameters, arguments)                                                \
  extern "C" __global__ void __launch_bounds__(threads) name##_by_16 parameters {                            \
    name<longlong2> arguments;                                                                               \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(threads) name##_by_4 parameters { name<uint32_t> arguments; } \
  extern "C" __global__ void __launch_bounds__(threads) name##_by_1 parameters { name<uint8_t> arguments; }

/// The number of this thread in the whole launch.
__device__ inline int64_t thread_index() {
  return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
}
__device__ inline int64_t thread_count() { return gridDim.x * static_cast<int64_t>(blockDim.x); }

/// `kLanes` lanes, a power of two below 32; all of them must make every call below.
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
  __device__ static int64_t count() { return thread_count() / kLanes; }

  /// The `value` of lane `from`.
  template <typename T>
  __device__ T broadcast(T value, int from) const {
    return __shfl_sync(mask, value, from, kLanes);
  }
  /// The first lane's value: lanes that read the same memory might do so before and after the same
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
  /// Number of lanes in which it holds.
  __device__ int count_of(bool holds) const { return __popc(__ballot_sync(mask, holds)); }
  /// Makes earlier writes of each lane visible to the others.
  __device__ void sync() const { __syncwarp(mask); }
};

constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
/// The number of this warp, and how many there are, in the whole launch.
__device__ inline int64_t warp_index() { return thread_index() / kWarp; }
__device__ inline int64_t warp_count() { return thread_count() / kWarp; }

/// The `value` of lane `from`.
template <typename T>
__device__ inline T from_lane(T value, int from) {
  return __shfl_sync(kWholeWarp, value, from);
}

/// The sum over all lanes, in every lane, in a fixed order.
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

/// Adjacent numbers of a row, read and written at once: rows start at multiples of their size.
template <int kWidth>
struct alignas(sizeof(float) * kWidth) Pack {
  float at[kWidth];

  __device__ static Pack filled(float value) {
    Pack pack;
    for (int w = 0; w < kWidth; ++w) pack.at[w] = value;
    return pack;
  }
  __device__ static Pack load(const float* row, int64_t i) { return *reinterpret_cast<const Pack*>(row + i); }
  __device__ void store(float* row, int64_t i) const { *reinterpret_cast<Pack*>(row + i) = *this; }
  /// this += scale * x
  __device__ void add(float scale, const Pack& x) {
    for (int w = 0; w < kWidth; ++w) at[w] += scale * x.at[w];
  }
};

}  // namespace tgflow
