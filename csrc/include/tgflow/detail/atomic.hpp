// Publication between one writer and many readers, on the host and on the device. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// Reads `*p`; what its writer wrote before `store_release` is then readable too.
template <typename T>
TGFLOW_HD inline T load_acquire(const T* p) {
#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
  const T value = *const_cast<const volatile T*>(p);
  __threadfence();
  return value;
#else
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

/// Writes `*p` after all that its writer wrote before.
template <typename T>
TGFLOW_HD inline void store_release(T* p, T value) {
#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
  __threadfence();
  *const_cast<volatile T*>(p) = value;
#else
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
#endif
}

}  // namespace tgflow
