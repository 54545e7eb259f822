// A change of the past on its way into the store: what the kernels of change.cu hand on. Device code alone.
#pragma once

#include "tgflow/cuda/insertion.hpp"
#include "tgflow/detail/change_node.hpp"

namespace tgflow {

/// One item per node that may change, a node's edits next to each other. Sums are over the nodes before.
struct Changing {
  StoreView store;
  Directory** heads;
  int64_t num_nodes;
  const node_t* node;  ///< By local id.
  const Edit* edits;
  const int64_t* begin;  ///< Per node, and the end; null without edits.
  int64_t puts_in;
  tick_t min_t;
  int64_t max_count;
  int64_t* demand;  ///< [4, num_nodes]: blocks, entries, units of directories, entries gained; then sums.
  NewBlock* blocks;
  Fresh fresh;
  Version version;  ///< Of every changed node, but for `older`.

  TGFLOW_HD Change change(int64_t i) const {
    if (begin == nullptr) return {nullptr, 0, false, min_t, max_count};
    return {edits + begin[i], begin[i + 1] - begin[i], puts_in != 0, min_t, max_count};
  }
  TGFLOW_HD const Directory* dir(int64_t i) const { return store.latest_local(node[i]); }
  /// Whether anything can change: forgetting looks at all nodes, and most have nothing to forget.
  TGFLOW_HD bool may_change(int64_t i) const {
    if (begin != nullptr) return true;
    const Directory* directory = dir(i);
    return directory != nullptr && directory->num_blocks != 0 &&
           num_forgotten(store, directory, change(i)) > 0;
  }
  TGFLOW_HD int64_t before(int kind, int64_t i) const {
    return i == 0 ? 0 : demand[kind * num_nodes + i - 1];
  }
  TGFLOW_HD bool changes(int64_t i) const { return demand[kUnits * num_nodes + i] != before(kUnits, i); }

  static constexpr int kBlocks = 0, kEntries = 1, kUnits = 2, kGained = 3;
};

}  // namespace tgflow
