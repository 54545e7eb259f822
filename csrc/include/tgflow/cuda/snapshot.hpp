// A store for kernels: in device memory, so that a captured CUDA graph sees it grow. Device code
// only.
#pragma once

#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// Written field by field, `position` last, while kernels read it.
struct Snapshot {
  StoreView store;
  eid_t position;  ///< Samplers see the events below it.
};

/// Advances a snapshot: readers that see the new position find all events below it. Two fields are stored
/// with release: `num_nodes`, since readers use it as the length of `heads`, and `position`. The
/// others may be seen early: tables only gain rows.
__device__ inline void publish(Snapshot* snapshot, const Snapshot& next) {
  store_relaxed(&snapshot->store.chunks, next.store.chunks);
  store_relaxed(&snapshot->store.tiers, next.store.tiers);
  store_relaxed(&snapshot->store.relations, next.store.relations);
  store_relaxed(&snapshot->store.change, next.store.change);
  store_relaxed(&snapshot->store.reads, next.store.reads);
  store_relaxed(&snapshot->store.shard.first_part, next.store.shard.first_part);
  store_relaxed(&snapshot->store.shard.num_other_parts, next.store.shard.num_other_parts);
  store_relaxed(&snapshot->store.heads, next.store.heads);
  store_release(&snapshot->store.num_nodes, next.store.num_nodes);
  store_release(&snapshot->position, next.position);
}

/// Parameters that differ between replays of a captured launch: in device memory, read when the kernel
/// runs.
struct SampleParams {
  eid_t before_all;  ///< Replaces the queries' own.
  uint64_t key;      ///< Replaces the sampler's.
  int64_t size;      ///< Later queries have no results.
  Since since;       ///< Replaces the queries' own.
};

/// State shared by a thread block that reads a store.
struct SharedReading {
  int64_t snapshot[sizeof(Snapshot) / sizeof(int64_t)];
  int64_t reads[2];
  SampleParams params;
};

/// One thread reads the snapshot for its block: the lanes of a tile must see the same state. If the
/// store counts reads, adds up the block's reads from each tier. All threads, whole warps, must reach the
/// constructor and `end`.
class Reading {
 public:
  /// Limits the queries to published events. `params` may be null: the arguments apply.
  __device__ Reading(const Snapshot* snapshot, const SampleParams* params, Queries& queries, Sampler& sampler,
                     SharedReading& shared)
      : shared_(shared) {
    auto& seen = *reinterpret_cast<Snapshot*>(shared.snapshot);
    if (threadIdx.x == 0) {
      seen.position = load_acquire(&snapshot->position);
      seen.store = snapshot->store;
      seen.store.num_nodes = load_acquire(&snapshot->store.num_nodes);
      seen.store.heads = load_dependent(&snapshot->store.heads);  // read after: never too few for the count
      shared.reads[0] = shared.reads[1] = 0;
      shared.params = params != nullptr
                          ? *params
                          : SampleParams{queries.before_all, sampler.key, queries.size, queries.since};
    }
    __syncthreads();
    queries.before_all = shared.params.before_all;
    queries.since = shared.params.since;
    sampler.key = shared.params.key;
    store = seen.store;
    reads_ = store.reads;
    if (reads_ != nullptr) store.reads = mine_;
    if (seen.position < queries.before_all) queries.before_all = seen.position;
  }

  /// Whether query `i` is in use.
  __device__ bool asks(int64_t i) const { return i < shared_.params.size; }

  /// Sums the threads' counts: a warp's by its lanes, then the warps' in shared memory.
  __device__ void end() {
    if (reads_ == nullptr) return;
    __syncthreads();  // tiles of a warp arrive one after the other
    for (int tier = 0; tier < 2; ++tier) {
      const long long sum = warp_sum<long long>(mine_[tier]);
      if (threadIdx.x % kWarp == 0) add_relaxed(shared_.reads + tier, sum);
    }
    __syncthreads();
    if (threadIdx.x < 2) add_relaxed(reads_ + threadIdx.x, shared_.reads[threadIdx.x]);
  }

  StoreView store;  ///< As of the snapshot, or later.

 private:
  SharedReading& shared_;
  int64_t* reads_;            ///< The store's own counts.
  int64_t mine_[2] = {0, 0};  ///< This thread's.
};

}  // namespace tgflow
