// The `uniform` sampler, one query at a time: draw entry numbers, then read the entries. No `std::` here.
#pragma once

#include "tgflow/detail/draws.hpp"
#include "tgflow/detail/recent_row.hpp"

namespace tgflow {

constexpr int64_t kFewDraws = 16;

/// Draws `k` numbers as Floyd's algorithm does and writes them, largest first; false if two of them are
/// equal. Free of branches on what is drawn, which would be mispredicted; fixed bounds let the compiler use
/// vectors.
TGFLOW_HD inline bool draw_few(Draws& draws, int32_t size, int32_t k, int64_t* out) {
  int32_t drawn[kFewDraws];
  for (int32_t i = 0; i < kFewDraws; ++i) drawn[i] = -1;
  for (int32_t i = 0; i < k; ++i) {
    const uint64_t range = static_cast<uint64_t>(size - k + i) + 1;
    drawn[i] = static_cast<int32_t>(draws.below(static_cast<uint32_t>(i), range));
  }
  int32_t num_equal = 0;
  for (int32_t i = 0; i < k; ++i) {
    const int32_t number = drawn[i];
    int32_t num_larger = 0;
    for (int32_t j = 0; j < kFewDraws; ++j) {
      num_larger += drawn[j] > number;
      num_equal += drawn[j] == number;
    }
    out[num_larger] = number;
  }
  return num_equal == k;
}

/// Draws `k` distinct numbers below `size` (`k < size`) into `out`, largest first; each subset is equally
/// likely. Floyd's algorithm (Bentley & Floyd, CACM 1987): the newest number, size - 1, is as likely as any.
TGFLOW_HD inline void draw_distinct(Draws& draws, int64_t size, int64_t k, int64_t* out) {
  if (k <= kFewDraws && size <= 0x7fffffff && size > 4 * k &&  // equal numbers are rare
      draw_few(draws, static_cast<int32_t>(size), static_cast<int32_t>(k), out)) {
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    const int64_t top = size - k + i;  // larger than all drawn so far
    const int64_t number = draws.below(static_cast<uint32_t>(i), static_cast<uint64_t>(top) + 1);
    int64_t place = i;
    while (place > 0 && out[place - 1] < number) --place;
    const bool taken = place > 0 && out[place - 1] == number;
    if (taken) place = 0;
    for (int64_t j = i; j > place; --j) out[j] = out[j - 1];
    out[place] = taken ? top : number;
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

/// Chooses row `i`'s entries: their numbers, largest first, wait in `out.eid` for `uniform_locate`.
TGFLOW_HD inline void uniform_draw(Visible seen, uint64_t key, int64_t i, const NeighborRows& out) {
  if (seen.count <= out.k) return;
  Draws draws(key, i);
  draw_distinct(draws, seen.count, out.k, out.eid + i * out.k);
}

/// Finds the block of each chosen entry, which waits in `out.node`, and the number there, in `out.eid`.
TGFLOW_HD inline void uniform_locate(const StoreView& store, const Directory* dir, Visible seen, int64_t i,
                                     const NeighborRows& out) {
  if (seen.count <= out.k) return;
  const Block* blocks = dir->blocks();
  int64_t b = seen.block;
  for (int64_t slot = i * out.k; slot < (i + 1) * out.k; ++slot) {
    const int64_t number = out.eid[slot];
    if (blocks[b].start > number) b = block_of(blocks, b, number);
    out.node[slot] = b;
    out.eid[slot] = number - blocks[b].start;
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
    __builtin_prefetch(store.entries(blocks[b]) + out.eid[slot]);
#endif
  }
}

/// Writes row `i` from what `uniform_locate` found; all entries where there are at most `k`.
TGFLOW_HD inline void uniform_read(const StoreView& store, const Directory* dir, Visible seen, int64_t i,
                                   const NeighborRows& out) {
  if (seen.count <= out.k) {
    recent_row(store, dir, seen, i, out);
    return;
  }
  for (int64_t slot = i * out.k; slot < (i + 1) * out.k; ++slot) {
    const Block& block = dir->blocks()[out.node[slot]];
    write_slot(out, slot, store.entries(block)[out.eid[slot]], block.base_eid);
  }
  out.count[i] = static_cast<int32_t>(out.k);
}

}  // namespace tgflow
