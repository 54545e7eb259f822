// The type of every event: its label, where that fits 16 bits.
#pragma once

#include <atomic>

#include "tgflow/events.hpp"
#include "tgflow/reserved_array.hpp"

namespace tgflow {

/// A column in the log's order. One thread appends; any number read what its events' snapshot holds.
class EventTypes {
 public:
  EventTypes();

  /// Gets room for `events`. Throws, and has changed nothing then.
  void reserve(const Events& events, eid_t first_eid);
  /// Adds what was reserved for.
  void commit(const Events& events, eid_t first_eid) noexcept;
  /// Null before the first event with a label.
  const uint16_t* data() const { return size_.load(std::memory_order_acquire) > 0 ? types_.data() : nullptr; }
  /// Throws std::invalid_argument unless each of the log's events, `num_events`, has a type.
  void check(int64_t num_events) const;
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(uint16_t)); }

 private:
  ReservedArray<uint16_t> types_;
  std::atomic<int64_t> size_{0};
  std::atomic<eid_t> typeless_{kNoEvent};  // the first event whose label does not fit
};

}  // namespace tgflow
