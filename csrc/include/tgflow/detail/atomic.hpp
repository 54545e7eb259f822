// Publication between one writer and many readers, on the host and on the device. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

#ifdef __CUDA_ARCH__
// On the device one load or store carries the ordering: a fence would also order all others.
template <int kBytes>
struct DeviceWord;
/// The word of `kBytes` bytes: its type, its type in PTX, and the letter of its registers.
#define TGFLOW_DEVICE_WORD(kBytes, Word, kType, kRegister)                                          \
  template <>                                                                                       \
  struct DeviceWord<kBytes> {                                                                       \
    using Bits = Word;                                                                              \
    __device__ static void load(const void* p, Bits& bits) {                                        \
      asm volatile("ld.acquire.gpu." kType " %0, [%1];" : "=" kRegister(bits) : "l"(p) : "memory"); \
    }                                                                                               \
    __device__ static void load_relaxed(const void* p, Bits& bits) {                                \
      asm volatile("ld.relaxed.gpu." kType " %0, [%1];" : "=" kRegister(bits) : "l"(p) : "memory"); \
    }                                                                                               \
    __device__ static void store(void* p, Bits bits) {                                              \
      asm volatile("st.release.gpu." kType " [%0], %1;" ::"l"(p), kRegister(bits) : "memory");      \
    }                                                                                               \
    __device__ static void store_relaxed(void* p, Bits bits) {                                      \
      asm volatile("st.relaxed.gpu." kType " [%0], %1;" ::"l"(p), kRegister(bits) : "memory");      \
    }                                                                                               \
  };
TGFLOW_DEVICE_WORD(1, unsigned int, "u8", "r")
TGFLOW_DEVICE_WORD(4, unsigned int, "u32", "r")
TGFLOW_DEVICE_WORD(8, unsigned long long, "u64", "l")
#undef TGFLOW_DEVICE_WORD

/// A value in the low bytes of a word: the device is little-endian.
template <typename T>
union InWord {
  typename DeviceWord<sizeof(T)>::Bits bits;
  T value;
};
#endif

/// Loads `*p` with acquire: earlier writes of the thread that stored it are visible.
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

/// Loads a pointer, or a number that an address is computed from, for dependent reads. On the device these
/// follow it, since their address depends on it; unlike `load_acquire` it does not flush the multiprocessor's
/// cache, so stale data must not be in that cache: `StoreView` explains why it is not.
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

/// Stores `*p` with release, after all earlier writes of this thread.
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

/// Stores `*p` atomically, unordered with other writes.
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

/// Adds to a counter shared by several threads.
TGFLOW_HD inline void add_relaxed(int64_t* p, int64_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(value));
#else
  __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#endif
}

}  // namespace tgflow
