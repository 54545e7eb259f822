// The log and its store, with one append for both.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "tgflow/block_store.hpp"
#include "tgflow/event_log.hpp"

namespace tgflow {

/// Any number of threads read while others append or change the past, one at a time.
///
/// Removed events are removed as neighbors: cut-offs from the
/// log's position at that time on no longer see them, earlier ones do until the graph is compacted. A shard
/// has the whole log, and the neighbors of its own nodes, to which removal counts refer.
class TemporalGraph {
 public:
  /// Without events; the first one's position will be `first`.
  explicit TemporalGraph(Direction direction, StoreMemory memory = {}, Shard shard = {}, eid_t first = 0)
      : log_(first, memory.disk), store_(direction, std::move(memory), shard, first) {}

  /// Throws std::invalid_argument if `events` cannot be appended; changes nothing.
  void check(const Events& events, bool may_be_late);
  /// Checks and adds `events`, all or none, and returns the first one's position. Late ones are merged into
  /// their nodes' pasts, visible to cut-offs from the batch's end on.
  eid_t append(const Events& events, bool may_be_late = false);

  /// Checks events and writes them to the log's memory, unseen, and to `rows`; see `EventLog::stage`.
  Largest stage(const Events& events, bool may_be_late, int64_t* rows = nullptr);
  /// Adds the staged events to the log only, for a separate store; returns the first one's position.
  eid_t record();
  /// Throws std::invalid_argument unless every event has a type.
  void check_relations() const { store_.relations().check(log_.size()); }

  /// Removes events. Throws std::out_of_range for one that the log does not hold; removed ones
  /// are skipped. This and the others return the number of entries removed.
  int64_t remove(const eid_t* eid, int64_t size);
  /// Removes every event from `src` to `dst`, and back if neighbors are mutual.
  int64_t remove_pair(node_t src, node_t dst);
  /// Removes entries before `min_t`, and each node's oldest until it has at most `max_count`.
  int64_t retain(tick_t min_t, int64_t max_count);
  void compact();
  /// Frees the neighbors before event `first`, which no query with that horizon sees, and the log's events
  /// before `log_first`. Throws std::out_of_range if the log does not hold these.
  void forget(eid_t first, eid_t log_first);

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
