// The `recent` sampler, one query at a time. No `std::` here.
#pragma once

#include "tgflow/detail/visible.hpp"

namespace tgflow {

TGFLOW_HD inline void write_slot(const NeighborRows& out, int64_t slot, const Entry& entry, eid_t base_eid) {
  out.node[slot] = entry.nbr;
  out.t[slot] = entry.t;
  out.eid[slot] = base_eid + entry.eid_offset;
}

/// Marks the slots [`slot`, `end`) as holding nobody.
TGFLOW_HD inline void pad_slots(const NeighborRows& out, int64_t slot, int64_t end) {
  for (; slot < end; ++slot) {
    out.node[slot] = kNoNode;
    out.t[slot] = 0;
    out.eid[slot] = kNoEvent;
  }
}

/// Writes row `i`: the newest `k` of the first `seen.count` entries of `dir`, newest first, padded.
TGFLOW_HD inline void recent_row(const Directory* dir, Visible seen, int64_t i, const NeighborRows& out) {
  const int64_t count = seen.count < out.k ? seen.count : out.k;
  int64_t slot = i * out.k;
  const int64_t filled = slot + count;
  int64_t end = seen.count;
  for (int64_t b = seen.block; slot < filled; --b) {
    const Block& block = dir->blocks()[b];
    const Entry* entry = load_acquire(&block.entries) + (end - block.start);
    const int64_t here = end - block.start < filled - slot ? end - block.start : filled - slot;
    for (const int64_t stop = slot + here; slot < stop; ++slot)
      write_slot(out, slot, *--entry, block.base_eid);
    end = block.start;
  }
  pad_slots(out, filled, (i + 1) * out.k);
  out.count[i] = static_cast<int32_t>(count);
}

}  // namespace tgflow
