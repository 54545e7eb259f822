// The rows of `recent` and `uniform`, written by the lanes of a tile together. Device code alone.
#pragma once

#include "tgflow/cuda/load_whole.hpp"
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/numbered.hpp"
#include "tgflow/detail/uniform_row.hpp"

namespace tgflow {

/// As `recent_row` of one thread, of `size` entries: neighboring lanes read neighboring entries and write
/// neighboring slots.
template <int kLanes>
__device__ inline void newest_row(const Tile<kLanes>& tile, const StoreView& store, const Directory* dir,
                                  Visible seen, int64_t size, int64_t i, const NeighborRows& out) {
  if (tile.lane == 0) out.count[i] = static_cast<int32_t>(size);
  const int64_t row = i * out.k;
  int64_t slot = 0;
  int64_t end = seen.count;
  for (int64_t b = seen.block; slot < size; --b) {
    const Block& block = dir->blocks()[b];
    const int64_t here = end - block.start;
    const int64_t taken = here < size - slot ? here : size - slot;
    if (tile.lane == 0) store.count_reads(block, taken);
    const Entry* newest = entries_around_cache(store, block) + (here - 1);
    for (int64_t j = tile.lane; j < taken; j += kLanes) {
      write_slot(out, row + slot + j, load_whole(newest - j), block.base_eid);
    }
    slot += taken;
    end = block.start;
  }
  for (int64_t j = size + tile.lane; j < out.k; j += kLanes) pad_slots(out, row + j, row + j + 1);
}

/// Draws as `draw_distinct` does, at most one number a lane: this lane's, and in `place` how many are larger.
template <int kLanes>
__device__ inline int64_t draw_one_each(const Tile<kLanes>& tile, Draws& draws, int64_t size, int k,
                                        int64_t* place) {
  const int64_t top = size - k + tile.lane;  // larger than all that earlier lanes drew
  const bool draws_one = tile.lane < k;
  int64_t mine = -1;
  if (draws_one) mine = draws.below(static_cast<uint32_t>(tile.lane), static_cast<uint64_t>(top) + 1);
  int num_larger = 0, num_equal = 0;
  const auto compare = [&] {
    num_larger = num_equal = 0;
    for (int j = 0; j < k; ++j) {
      const int64_t other = tile.broadcast(mine, j);
      num_larger += other > mine;
      num_equal += other == mine;
    }
  };
  compare();
  if (tile.any(draws_one && num_equal > 1)) {  // rare: one by one, a number that was drawn gives way
    for (int j = 1; j < k; ++j) {
      const int64_t number = tile.broadcast(mine, j);
      const bool taken = tile.any(tile.lane < j && mine == number);
      if (tile.lane == j && taken) mine = top;
    }
    compare();
  }
  *place = num_larger;
  return mine;
}

/// Draws as `draw_distinct` does, any `k`: the numbers, largest first, are then in `out`; `scratch` has room
/// for as many.
template <int kLanes>
__device__ inline void draw_many(const Tile<kLanes>& tile, Draws& draws, int64_t size, int64_t k,
                                 int64_t* scratch, int64_t* out) {
  for (int64_t j = tile.lane; j < k; j += kLanes) {
    scratch[j] = draws.below(static_cast<uint32_t>(j), static_cast<uint64_t>(size - k + j) + 1);
  }
  tile.sync();
  for (int64_t j = 1; j < k; ++j) {
    const int64_t number = scratch[j];
    bool taken = false;
    for (int64_t other = tile.lane; other < j; other += kLanes) taken |= scratch[other] == number;
    taken = tile.any(taken);
    if (tile.lane == 0 && taken) scratch[j] = size - k + j;
    tile.sync();
  }
  for (int64_t j = tile.lane; j < k; j += kLanes) {
    int64_t num_larger = 0;
    for (int64_t other = 0; other < k; ++other) num_larger += scratch[other] > scratch[j];
    out[num_larger] = scratch[j];
  }
  tile.sync();
}

/// Writes one slot of row `i`: entry `number` of `dir`, at or before the block that `seen` ends in.
__device__ inline void write_numbered(const StoreView& store, const Directory* dir, Visible seen,
                                      int64_t number, int64_t slot, const NeighborRows& out) {
  const Block* blocks = dir->blocks();
  const int64_t b = blocks[seen.block].start <= number ? seen.block : block_of(blocks, seen.block, number);
  store.count_reads(blocks[b], 1);
  const Entry* entries = entries_around_cache(store, blocks[b]);
  write_slot(out, slot, load_whole(entries + (number - blocks[b].start)), blocks[b].base_eid);
}

/// Writes row `i`: `out.k` of the entries numbered [first, seen.count), more than `out.k`.
template <int kLanes>
__device__ inline void uniform_row(const Tile<kLanes>& tile, const StoreView& store, const Directory* dir,
                                   int64_t first, Visible seen, Draws draws, int64_t i,
                                   const NeighborRows& out) {
  if (tile.lane == 0) out.count[i] = static_cast<int32_t>(out.k);
  const int64_t row = i * out.k;
  if (out.k <= kLanes) {
    int64_t place;
    const int k = static_cast<int>(out.k);
    const int64_t number = draw_one_each(tile, draws, seen.count - first, k, &place);
    if (tile.lane < k) write_numbered(store, dir, seen, first + number, row + place, out);
    return;
  }
  draw_many(tile, draws, seen.count - first, out.k, out.eid + row, out.node + row);
  for (int64_t j = tile.lane; j < out.k; j += kLanes) {
    write_numbered(store, dir, seen, first + out.node[row + j], row + j, out);
  }
}

}  // namespace tgflow
