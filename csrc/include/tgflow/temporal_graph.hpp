// The log and the store over it: one thing to append to.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "tgflow/block_store.hpp"
#include "tgflow/event_log.hpp"

namespace tgflow {

/// Any number of threads read while others append or change the past; those take turns.
///
/// The log keeps every event for ever. What is removed or forgotten is so as a neighbor: cut-offs from the
/// log's position at that time on no longer see it, earlier ones do until the graph is compacted. A shard has
/// the whole log, and the neighbors of its own nodes: what it counts as gone was theirs.
class TemporalGraph {
 public:
  explicit TemporalGraph(Direction direction, StoreMemory memory = {}, Shard shard = {})
      : store_(direction, std::move(memory), shard) {}

  /// Throws std::invalid_argument if `events` cannot follow what is there; changes nothing.
  void check(const Events& events, bool may_be_late);
  /// Checks and adds `events`, all or none, and returns the first one's position. Late ones are merged into
  /// their nodes' pasts, where cut-offs from the batch's end on see them.
  eid_t append(const Events& events, bool may_be_late = false);

  /// Adds checked events to the log alone, for a store elsewhere that `append` does not know of.
  eid_t record(const Events& events);
  /// Throws std::invalid_argument unless every event has a type.
  void check_types() const { store_.types().check(log_.size()); }

  /// Removes events. Throws std::out_of_range for one that the log does not hold; one that is removed already
  /// is passed over. This and the others return how many entries are gone.
  int64_t remove(const eid_t* eid, int64_t size);
  /// Removes every event from `src` to `dst`, and back where neighbors are mutual.
  int64_t remove_pair(node_t src, node_t dst);
  /// Removes every event of a node. Reads the whole log.
  int64_t remove_node(node_t v);
  /// Forgets entries before `min_t`, and each node's oldest until it has at most `max_count`.
  int64_t retain(tick_t min_t, int64_t max_count);
  void compact();

  EventLog& log() { return log_; }
  BlockStore& store() { return store_; }
  StoreStats stats();

 private:
  bool is_mutual() const { return store_.direction() != Direction::kDirected; }
  eid_t append_late(const Events& events);
  int64_t remove_all(const std::vector<eid_t>& eids);
  void find_events(node_t v, node_t nbr, std::vector<eid_t>& eids);

  std::mutex writer_;
  EventLog log_;
  BlockStore store_;
};

}  // namespace tgflow
