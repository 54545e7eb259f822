// Temporal neighbor sampling on the CPU. Row `i` of the answer depends on query `i` and on its row
// number alone, so neither threads nor the other queries matter.
#pragma once

#include "tgflow/block_store.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// Writes up to `out.k` distinct entries of each query, newest first. Query `i` draws from
/// (key, row_of(i), draw).
/// Throws std::invalid_argument if `sampler` tells types apart and the store cannot.
void sample_neighbors(BlockStore& store, Queries queries, const Sampler& sampler, const NeighborRows& out);

}  // namespace tgflow
