// The samplers on the GPU: the CPU's layout, draws and answers. Nothing here waits for the host or depends on
// it, so every kernel can be captured in a CUDA graph.
#include "tgflow/cuda/snapshot.hpp"
#include "tgflow/cuda/tile_rows.hpp"
#include "tgflow/cuda/tile_search.hpp"
#include "tgflow/detail/sample_row.hpp"

using namespace tgflow;

/// The newest entries of each query. A tile of 8 lanes reads 128 bytes at once; most rows are little longer.
extern "C" __global__ void __launch_bounds__(256)
    sample_recent(const Snapshot* snapshot, Queries queries, NeighborRows out) {
  const StoreView store = read_snapshot(snapshot, queries);
  const auto tile = Tile<8>::here();
  for (int64_t i = tile.index(); i < queries.size; i += tile.count()) {
    const eid_t before = queries.limit(i);
    const Directory* dir = store.directory(queries.node[i], before);
    const Visible seen = find_visible(tile, store, dir, queries.t[i], before);
    newest_row(tile, store, dir, seen, seen.count < out.k ? seen.count : out.k, i, out);
  }
}

/// Uniform draws from all that a query sees. A lane draws a number and fetches its entry.
extern "C" __global__ void __launch_bounds__(256)
    sample_uniform(const Snapshot* snapshot, Queries queries, uint64_t key, NeighborRows out) {
  const StoreView store = read_snapshot(snapshot, queries);
  const auto tile = Tile<16>::here();
  for (int64_t i = tile.index(); i < queries.size; i += tile.count()) {
    const eid_t before = queries.limit(i);
    const Directory* dir = store.directory(queries.node[i], before);
    const Visible seen = find_visible(tile, store, dir, queries.t[i], before);
    if (seen.count <= out.k) {
      newest_row(tile, store, dir, seen, seen.count, i, out);
    } else {
      uniform_row(tile, store, dir, 0, seen, key, i, out);
    }
  }
}

/// Any strategy and filter, a thread a query: what has no kernel of its own.
extern "C" __global__ void __launch_bounds__(256)
    sample_any(const Snapshot* snapshot, Queries queries, Sampler sampler, NeighborRows out) {
  const StoreView store = read_snapshot(snapshot, queries);
  const int64_t stride = gridDim.x * static_cast<int64_t>(blockDim.x);
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (; i < queries.size; i += stride) sample_row(store, queries, sampler, i, out);
}
