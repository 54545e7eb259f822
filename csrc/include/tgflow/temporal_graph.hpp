// The log and the store over it: one thing to append to.
#pragma once

#include <mutex>
#include <utility>

#include "tgflow/block_store.hpp"
#include "tgflow/event_log.hpp"

namespace tgflow {

/// Any number of threads read while others append; appends take turns.
class TemporalGraph {
 public:
  explicit TemporalGraph(Direction direction, StoreMemory memory = {})
      : store_(direction, std::move(memory)) {}

  /// Throws std::invalid_argument if `events` cannot follow what is there; changes nothing.
  void check(const Events& events);
  /// Checks and adds `events`, all or none, and returns the first one's position.
  eid_t append(const Events& events);

  EventLog& log() { return log_; }
  BlockStore& store() { return store_; }
  StoreStats stats();

 private:
  std::mutex writer_;
  EventLog log_;
  BlockStore store_;
};

}  // namespace tgflow
