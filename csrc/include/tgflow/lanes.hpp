// Many look-ups in memory at a time: what one query would wait for, a group of queries waits for together.
#pragma once

#include "tgflow/detail/visible.hpp"

namespace tgflow {

constexpr int64_t kGroup = 32;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kGrain = 256;      // queries that are worth waking a thread for
constexpr int64_t kLanes = 4;        // searches in flight
constexpr int64_t kPrefetched = 16;  // entries of a row

inline void prefetch(const void* address) { __builtin_prefetch(address); }

/// Fetches a row of `size` entries that ends at `newest`, wherever the block begins: a fetch cannot fail.
inline void prefetch_row(const Entry* newest, int64_t size) {
  const uintptr_t last = reinterpret_cast<uintptr_t>(newest);
  const uintptr_t bytes = static_cast<uintptr_t>(size) * sizeof(Entry);
  prefetch(newest);
  prefetch(reinterpret_cast<const void*>(last - bytes / 2));
  prefetch(reinterpret_cast<const void*>(last - bytes));
}

/// Runs `size` searches to their ends, several at a time so that their cache misses overlap.
/// `searches` and its companions have room for `kLanes` more.
template <typename Item>
void run_searches(Search<Item>* searches, const tick_t* t, const int64_t* limit, int64_t size) {
  static const Item nobody{};
  for (int64_t i = size; i < size + kLanes - 1; ++i) searches[i] = {&nobody, 1};
  for (int64_t i = 0; i < size; i += kLanes) {
    Search<Item> lane[kLanes];
    int64_t open = 0;
#pragma GCC unroll 8
    for (int64_t j = 0; j < kLanes; ++j) {
      lane[j] = searches[i + j];
      open |= lane[j].size - 1;
    }
    while (open != 0) {
      open = 0;
#pragma GCC unroll 8
      for (int64_t j = 0; j < kLanes; ++j) {
        narrow(lane[j], t[i + j], limit[i + j]);
        open |= lane[j].size - 1;
      }
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kLanes; ++j) searches[i + j] = lane[j];
  }
}

}  // namespace tgflow
