// The event log: the total order of all events, append-only, readable while it grows.
#pragma once

#include <atomic>
#include <memory>

#include "tgflow/events.hpp"
#include "tgflow/reserved_array.hpp"

namespace tgflow {

/// Columns src, dst, t and perhaps label. One thread appends; any number read what is below `size()`.
class EventLog {
 public:
  EventLog();

  int64_t size() const { return size_.load(std::memory_order_acquire); }
  /// The largest node id so far, plus one.
  int64_t num_nodes() const { return num_nodes_.load(std::memory_order_acquire); }
  bool has_label() const { return label_ != nullptr; }

  /// Throws std::invalid_argument, saying which event is wrong and why, if `events` cannot follow.
  void check(const Events& events) const;
  /// Adds `events`, checked, and returns the first one's position.
  eid_t append(const Events& events);
  /// How many events are strictly before time `t`.
  int64_t position(tick_t t) const;
  /// Copies the events at `eid[0, size)` out; `label` may be null. Throws std::out_of_range.
  void gather(const eid_t* eid, int64_t size, node_t* src, node_t* dst, tick_t* t, int64_t* label) const;

  // Columns stay in place for the log's lifetime.
  const node_t* src() const { return src_.data(); }
  const node_t* dst() const { return dst_.data(); }
  const tick_t* t() const { return t_.data(); }
  const int64_t* label() const { return label_ ? label_->data() : nullptr; }

 private:
  ReservedArray<node_t> src_;
  ReservedArray<node_t> dst_;
  ReservedArray<tick_t> t_;
  std::unique_ptr<ReservedArray<int64_t>> label_;  // decided by the first events
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> num_nodes_{0};
};

}  // namespace tgflow
