// CUDA's words on the CPU, for tests: kernels compile as plain C++ and run as `thread_block.hpp` says.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "thread_block.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#ifdef TGFLOW_INTERLEAVED
#define __shared__ static thread_local  // copied when another thread block continues
#else
#define __shared__ static  // thread blocks run one after the other
#endif

struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};

using std::max;
using std::min;

#define threadIdx (emulator::here.thread)
#define blockIdx (emulator::here.block)
#define blockDim (emulator::here.block_dim)
#define gridDim (emulator::here.grid_dim)

namespace emulator {

template <typename T>
uint64_t bits_of(T value) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "as CUDA's overloads");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <typename T>
T shuffled(unsigned mask, Collective what, T value, int argument, int width) {
  const uint64_t bits = meet(mask, {what, bits_of(value), argument, width});
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulator

#define TGFLOW_SHUFFLE(name, what)                                                 \
  template <typename T>                                                            \
  T name(unsigned mask, T value, int by, int width = 32) {                         \
    return emulator::shuffled(mask, emulator::Collective::what, value, by, width); \
  }
TGFLOW_SHUFFLE(__shfl_sync, kShuffle)
TGFLOW_SHUFFLE(__shfl_up_sync, kShuffleUp)
TGFLOW_SHUFFLE(__shfl_down_sync, kShuffleDown)
TGFLOW_SHUFFLE(__shfl_xor_sync, kShuffleXor)
#undef TGFLOW_SHUFFLE
inline unsigned __ballot_sync(unsigned mask, int holds) {
  return static_cast<unsigned>(emulator::meet(mask, {emulator::Collective::kBallot, holds != 0, 0, 32}));
}
inline int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }
inline int __all_sync(unsigned mask, int holds) { return __ballot_sync(mask, !holds) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffff) {
  emulator::meet(mask, {emulator::Collective::kSync, 0, 0, 32});
}
inline void __syncthreads() { emulator::meet_block(); }
inline void __threadfence() {}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }

// The types that CUDA has these for, and no others.
#define TGFLOW_ATOMIC(T, name, next, ...) \
  inline T name(T* at, __VA_ARGS__) {     \
    emulator::at_atomic();                \
    const T old = *at;                    \
    *at = next;                           \
    return old;                           \
  }
#define TGFLOW_ATOMICS(T)                                    \
  TGFLOW_ATOMIC(T, atomicAdd, old + value, T value)          \
  TGFLOW_ATOMIC(T, atomicMax, std::max(old, value), T value) \
  TGFLOW_ATOMIC(T, atomicMin, std::min(old, value), T value) \
  TGFLOW_ATOMIC(T, atomicCAS, old == compare ? value : old, T compare, T value)
TGFLOW_ATOMICS(int)
TGFLOW_ATOMICS(unsigned)
TGFLOW_ATOMICS(unsigned long long)
#undef TGFLOW_ATOMICS
#undef TGFLOW_ATOMIC

/// Streaming reads are written down, see `emulator::reads`.
template <typename T>
T __ldcs(const T* at) {
  emulator::note_read(at, sizeof(T));
  return *at;
}
