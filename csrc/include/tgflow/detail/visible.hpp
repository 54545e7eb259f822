// Which of a node's entries a query sees: a prefix of them, found without walking. No `std::` here.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// The entries of a directory that a query sees: the first `count`, the last of them in block `block`.
struct Visible {
  int64_t count;
  int64_t block;
};

/// Where a directory ends: entry number `total - 1`, in block `last`; total 0 without entries.
struct Tail {
  int64_t total;
  int64_t last;
  const Entry* newest;
};

TGFLOW_HD inline bool sees(tick_t entry_t, eid_t eid, tick_t t, eid_t before) {
  return (entry_t < t) & (eid < before);
}

TGFLOW_HD inline bool sees(const Block& block, tick_t t, eid_t before) {
  return sees(block.first_t, block.base_eid, t, before);
}

/// As of now; `dir` may be null.
TGFLOW_HD inline Tail tail_of(const StoreView& store, const Directory* dir) {
  const int64_t total = dir == nullptr ? 0 : load_acquire(&dir->total);
  if (total == 0) return {0, 0, nullptr};
  int64_t last = static_cast<int64_t>(load_dependent(&dir->num_blocks)) - 1;
  const Block* blocks = dir->blocks();
  while (last > 0 && blocks[last].start >= total) --last;  // published, but not yet its entries
  return {total, last, store.entries(blocks[last]) + (total - 1 - blocks[last].start)};
}

/// A binary search for the last seen of some items, the first of which is seen: it is in [low, low + size).
/// Free of branches, since each probe's outcome is a coin toss to a branch predictor.
template <typename Item>
struct Search {
  const Item* low;
  int64_t size;

  TGFLOW_HD const Item* probe() const { return low + (size >> 1); }
  TGFLOW_HD void narrow(bool seen) {
    low = seen ? probe() : low;
    size -= size >> 1;
  }
};

TGFLOW_HD inline void narrow(Search<Block>& search, tick_t t, eid_t before) {
  search.narrow(sees(*search.probe(), t, before));
}

TGFLOW_HD inline void narrow(Search<Entry>& search, tick_t t, int64_t offset_limit) {
  const Entry& entry = *search.probe();
  search.narrow(sees(entry.t, entry.eid_offset, t, offset_limit));
}

/// The entries of block `b`, of a directory with this tail.
TGFLOW_HD inline Search<Entry> entries_of(const StoreView& store, const Block* blocks, int64_t b,
                                          const Tail& tail) {
  const int64_t end = b == tail.last ? tail.total : blocks[b + 1].start;
  return {store.entries(blocks[b]), end - blocks[b].start};
}

/// Finds what a query at time `t` that knows the events before `before` sees of `dir` (may be null).
TGFLOW_HD inline Visible find_visible(const StoreView& store, const Directory* dir, tick_t t, eid_t before) {
  const Tail tail = tail_of(store, dir);
  if (tail.total == 0) return {0, 0};
  const Block* blocks = dir->blocks();
  if (sees(tail.newest->t, blocks[tail.last].base_eid + tail.newest->eid_offset, t, before)) {
    return {tail.total, tail.last};
  }
  if (!sees(blocks[0], t, before)) return {0, 0};
  Search<Block> block{blocks, tail.last + 1};
  while (block.size > 1) narrow(block, t, before);
  Search<Entry> entry = entries_of(store, blocks, block.low - blocks, tail);
  const Entry* first = entry.low;
  while (entry.size > 1) narrow(entry, t, before - block.low->base_eid);
  return {block.low->start + (entry.low - first) + 1, block.low - blocks};
}

/// The last of `blocks[0, size)` that starts at or before entry number `number`.
TGFLOW_HD inline int64_t block_of(const Block* blocks, int64_t size, int64_t number) {
  int64_t low = 0;
  while (size > 1) {
    const int64_t half = size >> 1;
    low += -static_cast<int64_t>(blocks[low + half].start <= number) & half;
    size -= half;
  }
  return low;
}

}  // namespace tgflow
