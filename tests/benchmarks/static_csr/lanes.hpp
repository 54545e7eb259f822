// Many look-ups in memory at a time: what one query would wait for, a group of queries waits for together.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

constexpr int64_t kGroup = 64;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kGrain = 256;      // queries that are worth waking a thread for
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

/// Runs `size` searches to their ends, at most `kGroup`, in step: each waits for its next probe while the
/// others look at theirs. `sees(i, item)` says whether search `i` goes on from `item`.
template <typename Item, typename Sees>
void run_searches(Search<Item>* searches, int64_t size, const Sees& sees) {
  int32_t open[kGroup];
  int64_t num_open = 0;
  const auto keep = [&](int32_t i) {
    open[num_open] = i;
    num_open += searches[i].size > 1;
  };
  for (int32_t i = 0; i < size; ++i) {
    prefetch(searches[i].probe());
    keep(i);
  }
  while (num_open > 0) {
    const int64_t asked = num_open;
    num_open = 0;
    for (int64_t j = 0; j < asked; ++j) {
      const int32_t i = open[j];
      searches[i].narrow(sees(i, *searches[i].probe()));
      prefetch(searches[i].probe());
      keep(i);
    }
  }
}

}  // namespace tgflow
