// What a query sees, found by the lanes of a tile together: `find_visible` on the GPU. Device code alone.
#pragma once

#include "tgflow/cuda/load_whole.hpp"
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/visible.hpp"

namespace tgflow {

/// The last of `size` items for which `seen(number)` holds; it holds for a prefix of them, the first
/// included. Each step asks once per lane, at even distances, and so leaves a part of `kLanes + 1`.
template <int kLanes, typename Seen>
__device__ inline int64_t last_seen(const Tile<kLanes>& tile, int64_t size, const Seen& seen) {
  int64_t low = 0;
  while (size > 1) {
    const bool wide = size > kLanes;
    const auto probe = [&](int64_t i) { return wide ? i * size / (kLanes + 1) : i; };
    const int64_t mine = probe(tile.lane + 1);
    const int64_t num_seen = tile.count_of(mine < size && seen(low + mine));
    const int64_t next = num_seen < kLanes ? probe(num_seen + 1) : size;
    low += probe(num_seen);
    size = wide ? next - probe(num_seen) : 1;
  }
  return low;
}

/// As `find_visible` of one thread; every lane returns the answer.
template <int kLanes>
__device__ inline Visible find_visible(const Tile<kLanes>& tile, const StoreView& store, const Directory* dir,
                                       tick_t t, eid_t before) {
  Tail tail = tail_of(store, dir);
  tail = {tile.agreed(tail.total), tile.agreed(tail.last), tile.agreed(tail.newest)};
  if (tail.total == 0) return {0, 0};
  const Block* blocks = dir->blocks();
  const Block& last = blocks[tail.last];
  if (sees(tail.newest->t, last.base_eid + tail.newest->eid_offset, t, before)) {
    return {tail.total, tail.last};
  }
  if (!sees(blocks[0], t, before)) return {0, 0};
  const int64_t b =
      last_seen(tile, tail.last + 1, [&](int64_t number) { return sees(blocks[number], t, before); });
  const int64_t end = b == tail.last ? tail.total : blocks[b + 1].start;
  const Entry* entries = entries_around_cache(store, blocks[b]);
  const int64_t limit = before - blocks[b].base_eid;
  const int64_t j = last_seen(tile, end - blocks[b].start, [&](int64_t number) {
    const Entry entry = load_whole(entries + number);
    return sees(entry.t, entry.eid_offset, t, limit);
  });
  return {blocks[b].start + j + 1, b};
}

}  // namespace tgflow
