// What the block store is measured against: all neighbors in one array, sorted by node and time. The best a
// sampler can read, but every insert makes all of it anew.
#pragma once

#include "tgflow/block_store.hpp"
#include "tgflow/events.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// One thread builds, then any number read. Holds at most 2^32 - 1 events.
class StaticCsr {
 public:
  explicit StaticCsr(Direction direction);

  /// Replaces the contents by `events`, in log order: a counting sort, in memory that it keeps.
  void build(const Events& events);
  /// Adds `events`, which follow those here, by moving what lies behind each of their entries.
  void insert(const Events& events);

  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_entries() const { return num_nodes_ == 0 ? 0 : offsets_[num_nodes_]; }
  int64_t num_events() const { return num_events_; }
  const uint32_t* offsets() const { return offsets_.data(); }
  const Entry* entries() const { return entries_.data(); }

 private:
  bool twice(node_t src, node_t dst) const { return direction_ != Direction::kDirected && src != dst; }

  Direction direction_;
  int64_t num_nodes_ = 0;
  int64_t num_events_ = 0;
  ReservedArray<uint32_t> offsets_;  // node v's entries: [offsets_[v], offsets_[v + 1])
  ReservedArray<Entry> entries_;     // `eid_offset` is the event itself
};

/// Answers as the block store does.
void recent_neighbors(const StaticCsr& csr, const Queries& queries, const NeighborRows& out);
void uniform_neighbors(const StaticCsr& csr, const Queries& queries, uint64_t key, const NeighborRows& out);

}  // namespace tgflow
