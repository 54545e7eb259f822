// Publication between one writer and many readers, on the host and on the device. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

#ifdef __CUDA_ARCH__
// On the device one load or store carries the ordering: a fence would make all others wait as well.
template <int kBytes>
struct DeviceWord;
template <>
struct DeviceWord<1> {
  using Bits = unsigned int;
  __device__ static void load(const void* p, Bits& bits) {
    asm volatile("ld.acquire.gpu.u8 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  }
  __device__ static void load_relaxed(const void* p, Bits& bits) {
    asm volatile("ld.relaxed.gpu.u8 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  }
  __device__ static void store(void* p, Bits bits) {
    asm volatile("st.release.gpu.u8 [%0], %1;" ::"l"(p), "r"(bits) : "memory");
  }
  __device__ static void store_relaxed(void* p, Bits bits) {
    asm volatile("st.relaxed.gpu.u8 [%0], %1;" ::"l"(p), "r"(bits) : "memory");
  }
};
template <>
struct DeviceWord<4> {
  using Bits = unsigned int;
  __device__ static void load(const void* p, Bits& bits) {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  }
  __device__ static void load_relaxed(const void* p, Bits& bits) {
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  }
  __device__ static void store(void* p, Bits bits) {
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(bits) : "memory");
  }
  __device__ static void store_relaxed(void* p, Bits bits) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(p), "r"(bits) : "memory");
  }
};
template <>
struct DeviceWord<8> {
  using Bits = unsigned long long;
  __device__ static void load(const void* p, Bits& bits) {
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(bits) : "l"(p) : "memory");
  }
  __device__ static void load_relaxed(const void* p, Bits& bits) {
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(bits) : "l"(p) : "memory");
  }
  __device__ static void store(void* p, Bits bits) {
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(bits) : "memory");
  }
  __device__ static void store_relaxed(void* p, Bits bits) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(p), "l"(bits) : "memory");
  }
};

/// A value in the low bytes of a word: the device is little-endian.
template <typename T>
union InWord {
  typename DeviceWord<sizeof(T)>::Bits bits;
  T value;
};
#endif

/// Reads `*p`; what its writer wrote before `store_release` is then readable too.
template <typename T>
TGFLOW_HD inline T load_acquire(const T* p) {
#ifdef __CUDA_ARCH__
  InWord<T> word;
  DeviceWord<sizeof(T)>::load(p, word.bits);
  return word.value;
#else
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

/// Reads a pointer, or a number that an address is made of, for reads of what is there. On the device those
/// follow it since they cannot begin before they know where; it does not empty the multiprocessor's cache as
/// `load_acquire` does, so they must not find there what was cached earlier: `StoreView` says why they do
/// not.
template <typename T>
TGFLOW_HD inline T load_dependent(const T* p) {
#ifdef __CUDA_ARCH__
  InWord<T> word;
  DeviceWord<sizeof(T)>::load_relaxed(p, word.bits);
  return word.value;
#else
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

/// Writes `*p` after all that its writer wrote before.
template <typename T>
TGFLOW_HD inline void store_release(T* p, T value) {
#ifdef __CUDA_ARCH__
  InWord<T> word{};
  word.value = value;
  DeviceWord<sizeof(T)>::store(p, word.bits);
#else
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
#endif
}

/// Writes `*p` in one piece, in no order with other writes.
template <typename T>
TGFLOW_HD inline void store_relaxed(T* p, T value) {
#ifdef __CUDA_ARCH__
  InWord<T> word{};
  word.value = value;
  DeviceWord<sizeof(T)>::store_relaxed(p, word.bits);
#else
  __atomic_store_n(p, value, __ATOMIC_RELAXED);
#endif
}

/// Adds to a counter that others add to as well.
TGFLOW_HD inline void add_relaxed(int64_t* p, int64_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(value));
#else
  __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#endif
}

}  // namespace tgflow
