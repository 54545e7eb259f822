// A batch on its way into the store: what the kernels of insert.cu hand on to each other. Device code alone.
#pragma once

#include "tgflow/cuda/size_class.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

constexpr int32_t kAbsent = 0x7fffffff;  ///< The node of a pair that is none: a self-loop's second.
constexpr int kDemands = 3;

/// Fresh memory: pieces are cut off a line that runs through the chunks. One that begins in the last
/// `max_capacity` entries of a chunk belongs to the next, so none straddles two.
struct Fresh {
  int64_t line;          ///< Where on the line this batch begins.
  int64_t stride;        ///< Chunks are that far apart on the line.
  Directory* rooms;      ///< Where its directories begin.
  int64_t max_capacity;  ///< Entries of a block at most.

  TGFLOW_HD place_t place(int64_t offset, int64_t capacity) const {
    return place_of((line + offset) / stride, (line + offset) % stride, capacity);
  }
  TGFLOW_HD Directory* room(int64_t offset) const { return rooms + offset; }
};

/// What a run needs of each kind of memory: its rank among all that need it.
struct Ranks {
  int32_t full;  ///< Of the first of its blocks of the most entries.
  int32_t last;  ///< Of its last block.
  int32_t room;  ///< Of its directory.
};

/// A run is a node's pairs; arrays have room for one run a pair.
struct Insertion {
  StoreView store;    ///< As published, but for chunks added since.
  Directory** heads;  ///< With room for all nodes, where it is time to publish.
  const node_t* src;
  const node_t* dst;
  const tick_t* t;
  eid_t first_eid;
  int64_t num_pairs;
  const int32_t* node;  ///< Per pair, sorted.
  const int64_t* pair;  ///< Per sorted pair: 2 * row, + 1 for the destination's.
  int32_t* run;         ///< Per pair: first whether a run begins, then runs so far.
  int64_t* begin;       ///< Per run, and the end.
  RunPlan* plans;
  Ranks* ranks;
  int64_t* demand;  ///< [kDemands, num_pairs]: blocks, fresh entries and rooms; then summed up.
  int32_t* needed;  ///< Per size class, then regrown blocks and replaced directories.
  FreeItems free;
  Fresh fresh;
  place_t* places;       ///< Of all new blocks.
  Directory** dirs;      ///< Per run.
  uint64_t* given_up;    ///< [2, runs]: old blocks and directories, 0 for none.
  uint8_t* given_class;  ///< Their size classes.

  TGFLOW_HD int64_t num_runs() const { return num_pairs == 0 ? 0 : run[num_pairs - 1]; }
  TGFLOW_HD int64_t row(int64_t p) const { return pair[p] >> 1; }
  TGFLOW_HD Mark mark(int64_t p) const { return {first_eid + row(p), t[row(p)]}; }
  TGFLOW_HD node_t neighbor(int64_t p) const { return (pair[p] & 1) != 0 ? src[row(p)] : dst[row(p)]; }
  /// What the runs before `r` need.
  TGFLOW_HD int64_t before(int kind, int64_t r) const {
    return r == 0 ? 0 : demand[kind * num_pairs + r - 1];
  }
  /// Whether memory of rank `rank` is fresh, none of its class being free.
  TGFLOW_HD bool is_fresh(int size_class, int64_t rank) const { return !free.has(size_class, rank); }
};

constexpr int kBlocks = 0, kEntries = 1, kRooms = 2;  ///< The demands.

}  // namespace tgflow
