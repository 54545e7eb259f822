// The samplers on the GPU, with the CPU's layout, draws and results. Nothing here waits for the host or
// depends on it, so every kernel can be captured in a CUDA graph.
#include "tgflow/cuda/snapshot.hpp"
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/sample_row.hpp"
#include "tgflow/detail/store_view.hpp"

using namespace tgflow;

/// One load of 16 bytes.
__device__ inline Entry load_whole(const Entry* entry) {
#ifdef __CUDA_ARCH__
  unsigned long long t, ids;
  asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];" : "=l"(t), "=l"(ids) : "l"(entry) : "memory");
  return {static_cast<tick_t>(t), static_cast<uint32_t>(ids), static_cast<uint32_t>(ids >> 32)};
#else
  return *entry;
#endif
}

/// Present address of a block's entries, for `load_whole` only.
__device__ inline const Entry* entries_around_cache(const StoreView& store, const Block& block) {
  return store.entries_at(load_dependent(&block.place));
}

/// The last of `size` items for which `seen(number)` holds, which is a nonempty prefix of them.
/// Each step probes once per lane, at even distances, and leaves a part of `kLanes + 1`.
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

/// `find_prefix` for a tile; every lane returns the result.
template <typename Rule = Earlier, int kLanes>
__device__ inline Visible find_prefix(const Tile<kLanes>& tile, const StoreView& store, const Directory* dir,
                                      tick_t t, eid_t before) {
  Tail tail = tail_of(store, dir);
  tail = {tile.agreed(tail.total), tile.agreed(tail.last), tile.agreed(tail.newest)};
  if (tail.total == 0) return {0, 0};
  const Block* blocks = dir->blocks();
  const Block& last = blocks[tail.last];
  if (Rule::holds(tail.newest->t, last.base_eid + tail.newest->eid_offset, t, before)) {
    return {tail.total, tail.last};
  }
  if (!holds<Rule>(blocks[0], t, before)) return {0, 0};
  const int64_t b =
      last_seen(tile, tail.last + 1, [&](int64_t number) { return holds<Rule>(blocks[number], t, before); });
  const int64_t end = b == tail.last ? tail.total : blocks[b + 1].start;
  const Entry* entries = entries_around_cache(store, blocks[b]);
  const int64_t limit = before - blocks[b].base_eid;
  const int64_t j = last_seen(tile, end - blocks[b].start, [&](int64_t number) {
    const Entry entry = load_whole(entries + number);
    return Rule::holds(entry.t, entry.eid_offset, t, limit);
  });
  return {blocks[b].start + j + 1, b};
}

/// `find_visible` for a tile; every lane returns the result.
template <int kLanes>
__device__ inline Visible find_visible(const Tile<kLanes>& tile, const StoreView& store, const Directory* dir,
                                       const Queries& queries, int64_t i) {
  Visible seen = find_prefix(tile, store, dir, queries.t[i], queries.limit(i));
  if (seen.count == 0 || queries.since.is_all()) return seen;
  const int64_t first = find_prefix<Outside>(tile, store, dir, queries.since.t, queries.since.eid).count;
  seen.first = first < seen.count ? first : seen.count;
  return seen;
}

/// `recent_row` for a tile, of `size` entries: neighboring lanes read neighboring entries and write
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

/// `draw_distinct` for a tile, one number per lane: returns this lane's; `place` counts larger ones.
template <int kLanes>
__device__ inline int64_t draw_one_each(const Tile<kLanes>& tile, Draws& draws, int64_t size, int k,
                                        int64_t* place) {
  const int64_t top = size - k + tile.lane;  // larger than all draws of earlier lanes
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
  if (tile.any(draws_one && num_equal > 1)) {  // rare: one by one, duplicates are replaced
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

/// `draw_distinct` for any `k`: the numbers, largest first, are then in `out`; `scratch` has room
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

/// Writes one slot of row `i`: entry `number` of `dir`, at or before the block in which `seen` ends.
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

/// The newest entries of each query. A tile of 8 lanes reads 128 bytes at once, the length of most rows.
extern "C" __global__ void __launch_bounds__(256)
    sample_recent(const Snapshot* snapshot, const SampleParams* params, Queries queries, NeighborRows out) {
  __shared__ SharedReading shared;
  Sampler sampler;
  Reading reading(snapshot, params, queries, sampler, shared);
  const StoreView& store = reading.store;
  const auto tile = Tile<8>::here();
  for (int64_t i = tile.index(); i < queries.size; i += tile.count()) {
    const Directory* dir = reading.asks(i) ? store.directory(queries.node[i], queries.limit(i)) : nullptr;
    dir = tile.agreed(dir);
    const Visible seen = find_visible(tile, store, dir, queries, i);
    newest_row(tile, store, dir, seen, seen.size() < out.k ? seen.size() : out.k, i, out);
  }
  reading.end();
}

/// Uniform draws from all entries that a query sees, or from its window. A lane draws a number and loads it.
extern "C" __global__ void __launch_bounds__(256)
    sample_uniform(const Snapshot* snapshot, const SampleParams* params, Queries queries, Sampler sampler,
                   NeighborRows out) {
  __shared__ SharedReading shared;
  Reading reading(snapshot, params, queries, sampler, shared);
  const StoreView& store = reading.store;
  const auto tile = Tile<16>::here();
  for (int64_t i = tile.index(); i < queries.size; i += tile.count()) {
    const Directory* dir = reading.asks(i) ? store.directory(queries.node[i], queries.limit(i)) : nullptr;
    dir = tile.agreed(dir);
    const Visible seen = find_visible(tile, store, dir, queries, i);
    int64_t first = seen.first;
    if (sampler.strategy == Strategy::kWindow) {
      const tick_t start = window_start(queries.t[i], sampler.span);
      first = find_prefix(tile, store, dir, start, kEveryEvent).count;
      first = first < seen.first ? seen.first : first < seen.count ? first : seen.count;
    }
    if (seen.count - first <= out.k) {
      newest_row(tile, store, dir, seen, seen.count - first, i, out);
    } else {
      uniform_row(tile, store, dir, first, seen, Draws(sampler.key, queries.row_of(i)), i, out);
    }
  }
  reading.end();
}

/// Any sampler, one thread per query: for sequential draws, or scans of every entry.
extern "C" __global__ void __launch_bounds__(128)
    sample_any(const Snapshot* snapshot, const SampleParams* params, Queries queries, Sampler sampler,
               NeighborRows out) {
  __shared__ SharedReading shared;
  Reading reading(snapshot, params, queries, sampler, shared);
  const StoreView& store = reading.store;
  for (int64_t i = Tile<1>::index(); i < queries.size; i += Tile<1>::count()) {
    if (reading.asks(i)) {
      sample_row(store, queries, sampler, i, out);
    } else {
      recent_row(store, nullptr, {0, 0}, i, out);
    }
  }
  reading.end();
}
