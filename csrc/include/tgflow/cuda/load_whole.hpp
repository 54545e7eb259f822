// Entries read around a multiprocessor's own cache, which may have neighbors of theirs from before. Device
// code alone.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// One load of 16 bytes.
__device__ inline Entry load_whole(const Entry* entry) {
#ifdef __CUDA_ARCH__
  unsigned long long t, ids;
  asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];" : "=l"(t), "=l"(ids) : "l"(entry) : "memory");
  return {static_cast<tick_t>(t), static_cast<uint32_t>(ids), static_cast<uint32_t>(ids >> 32)};
#else
  return *entry;
#endif
}

/// Where the entries of a block are now, for `load_whole` alone.
__device__ inline const Entry* entries_around_cache(const StoreView& store, const Block& block) {
  return store.entries_at(load_dependent(&block.place));
}

}  // namespace tgflow
