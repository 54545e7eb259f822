// Reading entries by number: 0 is a node's oldest. No `std::` here.
#pragma once

#include "tgflow/detail/recent_row.hpp"

namespace tgflow {

/// Finds the `size` entries whose numbers, largest first, wait in row `i` of `out.eid`: leaves their blocks
/// in `out.node` and their places there in `out.eid`. Block `last` is not before the first one's.
TGFLOW_HD inline void locate_numbered(const StoreView& store, const Directory* dir, int64_t last,
                                      int64_t size, int64_t i, const NeighborRows& out) {
  if (size == 0) return;  // `dir` may be null
  const Block* blocks = dir->blocks();
  int64_t b = last;
  for (int64_t slot = i * out.k; slot < i * out.k + size; ++slot) {
    const int64_t number = out.eid[slot];
    if (blocks[b].start > number) b = block_of(blocks, b, number);
    out.node[slot] = b;
    out.eid[slot] = number - blocks[b].start;
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
    __builtin_prefetch(store.entries(blocks[b]) + out.eid[slot]);
#endif
  }
}

/// Writes row `i` from what `locate_numbered` found.
TGFLOW_HD inline void read_numbered(const StoreView& store, const Directory* dir, int64_t size, int64_t i,
                                    const NeighborRows& out) {
  const int64_t filled = i * out.k + size;
  for (int64_t slot = i * out.k; slot < filled; ++slot) {
    const Block& block = dir->blocks()[out.node[slot]];
    store.count_reads(block, 1);
    write_slot(out, slot, store.entries(block)[out.eid[slot]], block.base_eid);
  }
  pad_slots(out, filled, (i + 1) * out.k);
  out.count[i] = static_cast<int32_t>(size);
}

}  // namespace tgflow
