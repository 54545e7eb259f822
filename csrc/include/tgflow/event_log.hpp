// The event log: the total order of all events, append-only, readable while it grows.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "tgflow/events.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

constexpr int64_t kMaxEvents = int64_t{1} << 34;  ///< Limit of a log: address space, not memory.

/// The largest ids of events; -1 without any.
struct Largest {
  node_t src = -1;
  node_t dst = -1;
};

/// Columns src, dst, t and optionally relation. One thread appends; any number read events in [first(),
/// size()). The log's clock at a position is the latest time before it: late events decrease times but not
/// the clock.
class EventLog {
 public:
  /// An empty log whose first event will have position `first`; in files with `disk`.
  explicit EventLog(eid_t first = 0, std::shared_ptr<DiskMemory> disk = nullptr);

  /// What the log, and tables that follow it, are in; null: memory.
  const std::shared_ptr<DiskMemory>& disk() const { return disk_; }

  /// The first event that is held.
  eid_t first() const { return first_.load(std::memory_order_acquire); }
  int64_t size() const { return size_.load(std::memory_order_acquire); }
  /// The largest node id so far, plus one.
  int64_t num_nodes() const { return num_nodes_.load(std::memory_order_acquire); }
  bool has_relation() const { return relation_ != nullptr; }

  /// Throws std::invalid_argument, with the event and the cause, if `events` cannot be appended. They may
  /// start before the log's clock if `may_be_late`.
  void check(const Events& events, bool may_be_late = false) const;
  /// Checks `events` and writes them behind the log's, to be added by `publish`; and to `rows`, int64
  /// `[columns, size]`, unless that is null. Reads and writes each column once, on the core's threads.
  Largest stage(const Events& events, bool may_be_late = false, int64_t* rows = nullptr);
  /// The staged events, in the log's memory.
  Events staged() const;
  /// Adds the staged events, and returns the first one's position.
  eid_t publish();
  eid_t append(const Events& events) {
    stage(events);
    return publish();
  }
  /// Frees the events before `first`, which nobody reads any more; those of answers are from `first_seen` on,
  /// from `first` to size(). One thread at a time.
  void forget(eid_t first, eid_t first_seen);
  /// The first event of answers from now on.
  eid_t first_seen() const { return first_seen_.load(std::memory_order_acquire); }
  /// Position at which the log's clock reached time `t`: without late ones, of the first event from `t` on.
  int64_t position(tick_t t) const;
  /// The latest time so far; INT64_MIN for an empty log.
  tick_t clock() const;
  /// The horizon that begins at event `first`, at most `size()`. Late events are inside by their times.
  Since since(eid_t first) const { return {first < size() ? clocks()[first] : clock(), first}; }
  /// Throws std::out_of_range, with the id, if one of `eid[0, size)` is not in the log.
  void check_eids(const eid_t* eid, int64_t size) const;
  /// Copies the events at `eid[0, size)` out; `relation` may be null. Throws std::out_of_range.
  void gather(const eid_t* eid, int64_t size, node_t* src, node_t* dst, tick_t* t, int64_t* relation) const;

  enum class Column : uint8_t { kSrc, kDst, kT, kRelation };
  /// Holds a column of events [begin, end) in a file instead of memory; see `ReservedMemory::map_file`.
  /// Throws std::out_of_range for events that the log does not have.
  bool map_file(Column column, int64_t begin, int64_t end, int fd, int64_t offset);

  // Columns stay in place for the log's lifetime.
  const node_t* src() const { return src_.data(); }
  const node_t* dst() const { return dst_.data(); }
  const tick_t* t() const { return t_.data(); }
  /// The log's clock after each event.
  const tick_t* clocks() const { return clocks_.load(std::memory_order_acquire); }
  const int64_t* relation() const { return relation_ ? relation_->data() : nullptr; }

 private:
  void append_clock(const Events& events);
  bool follows(const Events& events, bool may_be_late) const;

  const std::shared_ptr<DiskMemory> disk_;
  ReservedArray<node_t> src_;
  ReservedArray<node_t> dst_;
  ReservedArray<tick_t> t_;
  std::unique_ptr<ReservedArray<tick_t>> clock_;      // after each event, from the first late one on
  std::atomic<const tick_t*> clocks_;                 // that, or the times themselves
  std::unique_ptr<ReservedArray<int64_t>> relation_;  // decided by the first events
  std::atomic<int64_t> first_;
  std::atomic<int64_t> first_seen_;
  std::atomic<int64_t> size_;
  std::atomic<int64_t> num_nodes_{0};
  int64_t num_staged_ = 0;
  Largest largest_staged_;
};

/// A column in the log's order. One thread appends; any number read the events of their snapshot.
class EventRelations {
 public:
  explicit EventRelations(std::shared_ptr<DiskMemory> disk);

  /// Reserves memory for `events`. Throws without changes.
  void reserve(const Events& events, eid_t first_eid);
  /// Adds the reserved events.
  void commit(const Events& events, eid_t first_eid) noexcept;
  /// Null before the first event with a relation.
  const uint16_t* data() const {
    return size_.load(std::memory_order_acquire) > 0 ? relations_.data() : nullptr;
  }
  /// Throws std::invalid_argument unless each of the log's `num_events` events has a relation.
  void check(int64_t num_events) const;
  /// Frees those before event `first`, of which no entry is left.
  void forget(eid_t first) {
    relations_.drop(first);
    first_ = first;
  }
  int64_t bytes() const {
    return std::max<int64_t>(0, size_ - first_) * static_cast<int64_t>(sizeof(uint16_t));
  }

 private:
  ReservedArray<uint16_t> relations_;
  int64_t first_ = 0;
  std::atomic<int64_t> size_{0};
};

}  // namespace tgflow
