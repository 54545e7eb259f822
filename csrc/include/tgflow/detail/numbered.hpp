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
  int64_t* block = out.node + i * out.k;
  int64_t* place = out.eid + i * out.k;
  for (int64_t j = 0; j < size; ++j) block[j] = 0;
  for (int64_t rest = last + 1; rest > 1; rest -= rest >> 1) {  // all searches in step: they do not wait
    const int64_t half = rest >> 1;
    for (int64_t j = 0; j < size; ++j)
      block[j] += -static_cast<int64_t>(blocks[block[j] + half].start <= place[j]) & half;
  }
  for (int64_t j = 0; j < size; ++j) {
    place[j] -= blocks[block[j]].start;
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
    __builtin_prefetch(store.entries(blocks[block[j]]) + place[j]);
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
