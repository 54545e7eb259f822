// The samplers on the GPU: the per-query functions of the CPU, one thread a query. Nothing launches these
// kernels yet: the store's blocks are in host memory until it has a device arena.
#include "tgflow/detail/recent_row.hpp"
#include "tgflow/detail/uniform_row.hpp"

using tgflow::Directory;
using tgflow::NeighborRows;
using tgflow::Queries;
using tgflow::StoreView;
using tgflow::Visible;

__device__ inline int64_t thread_index() {
  return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
}
__device__ inline int64_t grid_stride() { return gridDim.x * static_cast<int64_t>(blockDim.x); }

extern "C" __global__ void recent_kernel(StoreView store, Queries queries, NeighborRows out) {
  for (int64_t i = thread_index(); i < queries.size; i += grid_stride()) {
    const Directory* dir = store.directory(queries.node[i], queries.limit(i));
    recent_row(store, dir, find_visible(store, dir, queries.t[i], queries.limit(i)), i, out);
  }
}

extern "C" __global__ void uniform_kernel(StoreView store, Queries queries, uint64_t key, NeighborRows out) {
  for (int64_t i = thread_index(); i < queries.size; i += grid_stride()) {
    const Directory* dir = store.directory(queries.node[i], queries.limit(i));
    const Visible seen = find_visible(store, dir, queries.t[i], queries.limit(i));
    uniform_draw(seen, key, i, out);
    uniform_locate(store, dir, seen, i, out);
    uniform_read(store, dir, seen, i, out);
  }
}
