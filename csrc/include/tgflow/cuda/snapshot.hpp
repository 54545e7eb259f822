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

}  // namespace tgflow
