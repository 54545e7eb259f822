// Temporal neighbor sampling on the CPU. Row `i` of the answer depends on query `i` and on `i` alone, so
// neither threads nor the other queries matter.
#pragma once

#include "tgflow/block_store.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// The `k` newest entries of each query, newest first.
void recent_neighbors(BlockStore& store, const Queries& queries, const NeighborRows& out);
/// `k` distinct entries of each query, every one equally likely, newest first; drawn from (key, i, draw).
void uniform_neighbors(BlockStore& store, const Queries& queries, uint64_t key, const NeighborRows& out);

}  // namespace tgflow
