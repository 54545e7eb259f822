// The `uniform` sampler, one query at a time: draw entry numbers, then read the entries. No `std::` here.
#pragma once

#include "tgflow/detail/draws.hpp"
#include "tgflow/detail/recent_row.hpp"

namespace tgflow {

/// Draws `k` distinct numbers below `size` (`k < size`) into `out`, largest first; each subset is equally
/// likely. Floyd's algorithm (Bentley & Floyd, CACM 1987): the newest number, size - 1, is as likely as any.
TGFLOW_HD inline void draw_distinct(Draws& draws, int64_t size, int64_t k, int64_t* out) {
  for (int64_t i = 0; i < k; ++i) {
    const int64_t top = size - k + i;  // larger than all drawn so far
    const int64_t drawn = draws.below(static_cast<uint32_t>(i), static_cast<uint64_t>(top) + 1);
    int64_t place = i;
    while (place > 0 && out[place - 1] < drawn) --place;
    if (place > 0 && out[place - 1] == drawn) {
      place = 0;
      for (int64_t j = i; j > 0; --j) out[j] = out[j - 1];
      out[0] = top;
      continue;
    }
    for (int64_t j = i; j > place; --j) out[j] = out[j - 1];
    out[place] = drawn;
  }
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

/// Chooses row `i`'s entries: their numbers, largest first, wait in `out.eid` for `uniform_read`.
TGFLOW_HD inline void uniform_draw(Visible seen, uint64_t key, int64_t i, const NeighborRows& out) {
  if (seen.count <= out.k) return;
  Draws draws(key, i);
  draw_distinct(draws, seen.count, out.k, out.eid + i * out.k);
}

/// Writes row `i` from the numbers that `uniform_draw` chose; all entries where there are at most `k`.
TGFLOW_HD inline void uniform_read(const Directory* dir, Visible seen, int64_t i, const NeighborRows& out) {
  if (seen.count <= out.k) {
    recent_row(dir, seen, i, out);
    return;
  }
  const Block* blocks = dir->blocks();
  int64_t b = seen.block;
  for (int64_t slot = i * out.k; slot < (i + 1) * out.k; ++slot) {
    const int64_t number = out.eid[slot];
    if (blocks[b].start > number) b = block_of(blocks, b, number);
    write_slot(out, slot, load_acquire(&blocks[b].entries)[number - blocks[b].start], blocks[b].base_eid);
  }
  out.count[i] = static_cast<int32_t>(out.k);
}

}  // namespace tgflow
