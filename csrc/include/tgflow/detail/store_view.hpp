// How the block store lies in memory, as samplers on the CPU and the GPU read it. No `std::` here.
#pragma once

#include "tgflow/detail/atomic.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// One neighbor in one direction: 16 bytes.
struct Entry {
  tick_t t;
  uint32_t nbr;
  uint32_t eid_offset;  ///< From the block's `base_eid`.
};

/// A run of a node's entries in log order. All but `entries` is fixed once published.
struct Block {
  Entry* entries;  ///< Replaced when the node's only block grows; the old one stays readable for a while.
  eid_t base_eid;  ///< The first entry's event.
  tick_t first_t;  ///< The first entry's time.
  int64_t start;   ///< Entries of the node before this block.
};

/// A node's blocks, oldest first; they follow this header in memory.
struct Directory {
  int64_t total;  ///< Published entries. Read it first: blocks that it counts are then readable.
  uint32_t num_blocks;
  uint32_t max_blocks;    ///< Room for blocks behind this header.
  int64_t tail_capacity;  ///< Of the last block; the writer's.
  int64_t unused;         ///< A directory of one block fills one cache line.

  TGFLOW_HD Block* blocks() { return reinterpret_cast<Block*>(this + 1); }
  TGFLOW_HD const Block* blocks() const { return reinterpret_cast<const Block*>(this + 1); }
};

/// What a reader needs of a store; valid while it is registered with the store's epochs.
struct StoreView {
  const Directory* const* heads;  ///< Per node, null before its first entry.
  int64_t num_nodes;

  /// The directory of `v`, or null where `v` has no history: unknown, negative or new.
  TGFLOW_HD const Directory* directory(node_t v) const {
    return v >= 0 && v < num_nodes ? load_acquire(heads + v) : nullptr;
  }
  /// The first entry of `block`.
  TGFLOW_HD const Entry* entries(const Block& block) const { return load_acquire(&block.entries); }
};

/// Neighborhoods to look up: entries with `t < t[i]` and `eid < limit(i)`.
struct Queries {
  const node_t* node;
  const tick_t* t;
  const eid_t* before;  ///< Per query, or null.
  eid_t before_all;     ///< For every query.
  int64_t size;

  TGFLOW_HD eid_t limit(int64_t i) const {
    return before != nullptr && before[i] < before_all ? before[i] : before_all;
  }
};

/// Where the answers go: `k` slots a query, and how many of them are filled.
struct NeighborRows {
  node_t* node;
  tick_t* t;
  eid_t* eid;
  int32_t* count;
  int64_t k;
};

}  // namespace tgflow
