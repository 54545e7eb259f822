// Which of a node's entries a query sees: a prefix of them, found without walking. No `std::` here.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// The entries of `dir` that a query sees: the first `count`, the last of them in block `block`.
struct Visible {
  int64_t count;
  int64_t block;
};

TGFLOW_HD inline bool sees(tick_t entry_t, eid_t eid, tick_t t, eid_t before) {
  return (entry_t < t) & (eid < before);
}

/// The last of `blocks[0, size)` whose first entry is seen, given that the first block's is.
TGFLOW_HD inline int64_t last_seen_block(const Block* blocks, int64_t size, tick_t t, eid_t before) {
  int64_t low = 0;
  while (size > 1) {  // branch-free: the outcome of each probe is a coin toss to the predictor
    const int64_t half = size >> 1;
    const Block& probe = blocks[low + half];
    low += -static_cast<int64_t>(sees(probe.first_t, probe.base_eid, t, before)) & half;
    size -= half;
  }
  return low;
}

/// How many of `entries[0, size)` are seen, given that the first one is.
TGFLOW_HD inline int64_t count_seen(const Entry* entries, int64_t size, tick_t t, int64_t offset_limit) {
  int64_t low = 0;
  while (size > 1) {
    const int64_t half = size >> 1;
    const Entry& probe = entries[low + half];
    low += -static_cast<int64_t>(sees(probe.t, probe.eid_offset, t, offset_limit)) & half;
    size -= half;
  }
  return low + 1;
}

/// Finds what a query at time `t` that knows the events before `before` sees of `dir` (may be null).
TGFLOW_HD inline Visible visible(const Directory* dir, tick_t t, eid_t before) {
  if (dir == nullptr) return {0, 0};
  const int64_t total = load_acquire(&dir->total);
  int64_t last = static_cast<int64_t>(load_acquire(&dir->num_blocks)) - 1;
  const Block* blocks = dir->blocks();
  while (last > 0 && blocks[last].start >= total) --last;  // published, but not yet its entries
  if (total == 0 || !sees(blocks[0].first_t, blocks[0].base_eid, t, before)) return {0, 0};

  const Block& tail = blocks[last];
  const Entry& newest = load_acquire(&tail.entries)[total - 1 - tail.start];
  if (sees(newest.t, tail.base_eid + newest.eid_offset, t, before)) return {total, last};

  const int64_t found = last_seen_block(blocks, last + 1, t, before);
  const Block& block = blocks[found];
  const int64_t end = found == last ? total : blocks[found + 1].start;
  const Entry* entries = load_acquire(&block.entries);
  return {block.start + count_seen(entries, end - block.start, t, before - block.base_eid), found};
}

}  // namespace tgflow
