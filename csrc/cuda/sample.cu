// The samplers on the GPU: the CPU's layout, draws and answers. Nothing here waits for the host or depends on
// it, so every kernel can be captured in a CUDA graph.
#include "tgflow/cuda/snapshot.hpp"
#include "tgflow/cuda/tile_rows.hpp"
#include "tgflow/cuda/tile_search.hpp"
#include "tgflow/detail/sample_row.hpp"

using namespace tgflow;

/// The newest entries of each query. A tile of 8 lanes reads 128 bytes at once; most rows are little longer.
extern "C" __global__ void __launch_bounds__(256)
    sample_recent(const Snapshot* snapshot, const SampleParams* params, Queries queries, NeighborRows out) {
  __shared__ SharedReading shared;
  Sampler sampler;
  Reading reading(snapshot, params, queries, sampler, shared);
  const StoreView& store = reading.store;
  const auto tile = Tile<8>::here();
  for (int64_t i = tile.index(); i < queries.size; i += tile.count()) {
    const eid_t before = queries.limit(i);
    const Directory* dir = reading.asks(i) ? store.directory(queries.node[i], before) : nullptr;
    dir = tile.agreed(dir);
    const Visible seen = find_visible(tile, store, dir, queries.t[i], before);
    newest_row(tile, store, dir, seen, seen.count < out.k ? seen.count : out.k, i, out);
  }
  reading.end();
}

/// Uniform draws from all that a query sees, or from its window. A lane draws a number and fetches its entry.
extern "C" __global__ void __launch_bounds__(256)
    sample_uniform(const Snapshot* snapshot, const SampleParams* params, Queries queries, Sampler sampler,
                   NeighborRows out) {
  __shared__ SharedReading shared;
  Reading reading(snapshot, params, queries, sampler, shared);
  const StoreView& store = reading.store;
  const auto tile = Tile<16>::here();
  for (int64_t i = tile.index(); i < queries.size; i += tile.count()) {
    const eid_t before = queries.limit(i);
    const Directory* dir = reading.asks(i) ? store.directory(queries.node[i], before) : nullptr;
    dir = tile.agreed(dir);
    const Visible seen = find_visible(tile, store, dir, queries.t[i], before);
    int64_t first = 0;
    if (sampler.strategy == Strategy::kWindow) {
      const tick_t start = window_start(queries.t[i], sampler.span);
      first = find_visible(tile, store, dir, start, kEveryEvent).count;
      if (first > seen.count) first = seen.count;
    }
    if (seen.count - first <= out.k) {
      newest_row(tile, store, dir, seen, seen.count - first, i, out);
    } else {
      uniform_row(tile, store, dir, first, seen, Draws(sampler.key, queries.row_of(i)), i, out);
    }
  }
  reading.end();
}

/// Any sampler, one thread a query: what draws one entry after the other, or looks at every entry.
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
