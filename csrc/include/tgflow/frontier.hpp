// Frontiers: deduplication of queries, and expansion of a block's neighbors to the frontier below.
#pragma once

#include <cstdint>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Queries: nodes, times, and the log position at which each one's batch started, as of which memory is read
/// and batch-stale neighborhoods end.
struct FrontierIn {
  const node_t* node;
  const tick_t* t;
  const int64_t* position;  ///< Null: all have the same.
  int64_t size;

  int64_t position_of(int64_t i) const { return position == nullptr ? 0 : position[i]; }
};

/// Output of distinct queries, in order of first appearance. A null `t` or `position` is not
/// compared.
struct FrontierOut {
  node_t* node;
  tick_t* t;
  int64_t* position;
};

/// Writes the distinct queries to `out` (room for all) and the place of query `i` to `row[i]`. Returns how
/// many. The memory of `index` is reused, here and below: a caller that keeps it avoids allocations.
int64_t unique_queries(const FrontierIn& queries, const FrontierOut& out, int64_t* row, RowIndex& index);

/// Sampled neighbors of `FrontierIn`, row-major [size, k]; an empty slot has node `kNoNode`.
struct NeighborsIn {
  const node_t* node;
  const tick_t* t;
  int64_t k;
};

/// Columns of a block for its targets and their neighbors; see tgflow/graph/batch.py.
struct BlockOut {
  int64_t* target;    ///< [size]
  int64_t* neighbor;  ///< [size, k]
  bool* mask;         ///< [size, k]
  float* dt;          ///< [size, k], seconds
};

/// Fills `block` and writes the frontier below it to `below` (room for size * (k + 1)): the targets, then
/// their neighbors at the times of their events, distinct. A neighbor inherits its target's position.
int64_t expand_frontier(const FrontierIn& targets, const NeighborsIn& neighbors, double seconds_per_tick,
                        const FrontierOut& below, const BlockOut& block, RowIndex& index);

/// Events of a batch: one block's, or its own.
struct EventList {
  const eid_t* eid;
  int64_t size;
  int64_t* row;  ///< [size]: row of each event
};

/// Writes `kNoEvent` and then the distinct events of `lists` to `out` (room for all of them and one more), in
/// order of first appearance; row 0 is `kNoEvent`'s. Returns how many there were before the first list (1)
/// and after each.
std::vector<int64_t> unique_events(const std::vector<EventList>& lists, eid_t* out, RowIndex& index);

}  // namespace tgflow
