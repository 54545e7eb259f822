// A store as kernels find it: in device memory, so that a captured CUDA graph sees it grow. Device code
// alone.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// Written field by field, `position` last, while kernels read it.
struct Snapshot {
  StoreView store;
  eid_t position;  ///< Samplers see the events below it.
};

/// Limits the queries to what is published, and returns the store as it is then or later.
__device__ inline StoreView read_snapshot(const Snapshot* snapshot, Queries& queries) {
  const eid_t position = load_acquire(&snapshot->position);
  if (position < queries.before_all) queries.before_all = position;
  StoreView store = snapshot->store;
  store.num_nodes = load_acquire(&snapshot->store.num_nodes);
  store.heads = load_acquire(&snapshot->store.heads);  // after the count: they are never too few for it
  return store;
}

/// What a thread block reads from each tier, counted in shared memory where the store wants it counted. All
/// its threads come to both calls.
struct CountedReads {
  int64_t* total;
  int64_t* shared;

  __device__ static CountedReads begin(StoreView& store, int64_t* shared) {
    int64_t* total = store.reads;
    if (total != nullptr) {
      if (threadIdx.x < 2) shared[threadIdx.x] = 0;
      __syncthreads();
      store.reads = shared;
    }
    return {total, shared};
  }
  __device__ void end() const {
    if (total == nullptr) return;
    __syncthreads();
    if (threadIdx.x < 2) add_relaxed(total + threadIdx.x, shared[threadIdx.x]);
  }
};

}  // namespace tgflow
