// Temporal neighbor sampling on the CPU. Row `i` of the result depends only on query `i` and its row
// number, not on threads or other queries.
#pragma once

#include "tgflow/block_store.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// Writes up to `out.k` distinct entries of each query, newest first. Query `i` draws from (key, row_of(i),
/// draw). Throws std::invalid_argument if `sampler` selects relations and the store has none.
void sample_neighbors(BlockStore& store, Queries queries, const Sampler& sampler, const NeighborRows& out);

}  // namespace tgflow
