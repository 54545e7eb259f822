// What a store holds, counted when asked for: inserting counts nothing.
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/store_view.hpp"

using namespace tgflow;

/// Seven numbers, as `DeviceStore.stats` reads them back.
struct StoreCounts {
  unsigned long long num_blocks[2], num_entries[2], capacity[2];
  unsigned long long max_blocks;
};

/// Per node: adds up its blocks by tier, older versions' not included.
extern "C" __global__ void __launch_bounds__(256) count_store(StoreView store, StoreCounts* counts) {
  const int64_t v = thread_index();
  const Directory* dir = store.latest_local(v);
  if (dir == nullptr) return;
  for (uint32_t b = 0; b < dir->num_blocks; ++b) {
    const Block& block = dir->blocks()[b];
    const int64_t end = b + 1 < dir->num_blocks ? dir->blocks()[b + 1].start : dir->total;
    const int tier = store.tier(block.place);
    atomicAdd(&counts->num_blocks[tier], 1ull);
    atomicAdd(&counts->num_entries[tier], static_cast<unsigned long long>(end - block.start));
    atomicAdd(&counts->capacity[tier], static_cast<unsigned long long>(capacity_of(block.place)));
  }
  atomicMax(&counts->max_blocks, static_cast<unsigned long long>(dir->num_blocks));
}
