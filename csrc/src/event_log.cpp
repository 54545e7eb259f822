#include "tgflow/event_log.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace tgflow {

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

std::string event(int64_t row) { return "event " + std::to_string(row); }

void check_ids(const char* name, const node_t* ids, int64_t size) {
  uint64_t all = 0;
  for (int64_t i = 0; i < size; ++i) all |= static_cast<uint64_t>(ids[i]);
  if (all < static_cast<uint64_t>(kMaxNode)) return;  // no id has a bit outside of kMaxNode
  for (int64_t i = 0; i < size; ++i) {
    if (ids[i] >= 0 && ids[i] <= kMaxNode) continue;
    fail(event(i) + " has " + name + "=" + std::to_string(ids[i]) + "; node ids must be in [0, " +
         std::to_string(kMaxNode) + "], use NodeIds to map others");
  }
}

void append_column(ReservedArray<int64_t>& column, int64_t at, const int64_t* values, int64_t size) {
  column.grow(at + size);
  std::memcpy(column.data() + at, values, static_cast<size_t>(size) * sizeof(int64_t));
}

}  // namespace

EventLog::EventLog() : src_(kMaxEvents), dst_(kMaxEvents), t_(kMaxEvents), clocks_(t_.data()) {}

tick_t EventLog::clock() const {
  const int64_t at = size();
  return at == 0 ? INT64_MIN : clocks_.load(std::memory_order_acquire)[at - 1];
}

void EventLog::check(const Events& events, bool may_be_late) const {
  check_ids("src", events.src, events.size);
  check_ids("dst", events.dst, events.size);
  const int64_t at = size();
  for (int64_t i = 0; i < events.size; ++i) {
    if (i > 0 ? events.t[i] >= events.t[i - 1] : may_be_late || events.t[0] >= clock()) continue;
    const std::string where = i == 0 ? "the log is" : event(i - 1) + " before it is";
    fail(event(i) + " has t=" + std::to_string(events.t[i]) + " but " + where +
         " at t=" + std::to_string(i == 0 ? clock() : events.t[i - 1]) +
         "; sort the batch or use a reorder buffer" + (i == 0 ? ", or insert it late" : ""));
  }
  if (at > 0 && events.size > 0 && has_label() != (events.label != nullptr)) {
    fail(has_label() ? "the log has labels but the batch has none; give every batch a label column"
                     : "the batch has labels but the log has none; give labels from the first batch on");
  }
}

eid_t EventLog::append(const Events& events) {
  const int64_t at = size();
  if (events.size == 0) return at;
  if (at == 0) label_ = events.label ? std::make_unique<ReservedArray<int64_t>>(kMaxEvents) : nullptr;
  append_column(src_, at, events.src, events.size);
  append_column(dst_, at, events.dst, events.size);
  append_column(t_, at, events.t, events.size);
  if (label_) append_column(*label_, at, events.label, events.size);
  append_clock(events);
  const node_t largest = std::max(*std::max_element(events.src, events.src + events.size),
                                  *std::max_element(events.dst, events.dst + events.size));
  num_nodes_.store(std::max(num_nodes(), largest + 1), std::memory_order_release);
  size_.store(at + events.size, std::memory_order_release);
  return at;
}

/// Times serve as the clock until one decreases.
void EventLog::append_clock(const Events& events) {
  const int64_t at = size();
  if (!clock_ && events.t[0] >= clock()) return;
  if (!clock_) {
    auto clock = std::make_unique<ReservedArray<tick_t>>(kMaxEvents);
    append_column(*clock, 0, t_.data(), at);
    clock_ = std::move(clock);
  }
  clock_->grow(at + events.size);
  tick_t now = clock();
  for (int64_t i = 0; i < events.size; ++i) (*clock_)[at + i] = now = std::max(now, events.t[i]);
  clocks_.store(clock_->data(), std::memory_order_release);
}

int64_t EventLog::position(tick_t t) const {
  const int64_t end = size();
  const tick_t* clocks = clocks_.load(std::memory_order_acquire);
  return std::lower_bound(clocks, clocks + end, t) - clocks;
}

void EventLog::check_eids(const eid_t* eid, int64_t count) const {
  const int64_t end = size();
  for (int64_t i = 0; i < count; ++i) {
    if (eid[i] < 0 || eid[i] >= end) {
      throw std::out_of_range("eid " + std::to_string(eid[i]) + " at row " + std::to_string(i) +
                              " is not in the log, which holds events [0, " + std::to_string(end) + ")");
    }
  }
}

void EventLog::gather(const eid_t* eid, int64_t count, node_t* src, node_t* dst, tick_t* t,
                      int64_t* label) const {
  check_eids(eid, count);
  for (int64_t i = 0; i < count; ++i) {
    src[i] = src_[eid[i]];
    dst[i] = dst_[eid[i]];
    t[i] = t_[eid[i]];
  }
  for (int64_t i = 0; label != nullptr && i < count; ++i) label[i] = (*label_)[eid[i]];
}

EventTypes::EventTypes() : types_(kMaxEvents) {}

void EventTypes::reserve(const Events& events, eid_t first_eid) {
  if (events.label != nullptr) types_.grow(first_eid + events.size);
}

void EventTypes::commit(const Events& events, eid_t first_eid) noexcept {
  if (events.label == nullptr || events.size == 0) return;
  for (int64_t i = 0; i < events.size; ++i) {
    const auto type = static_cast<uint16_t>(events.label[i]);
    types_[first_eid + i] = type;
    if (type != events.label[i] && typeless_ == kNoEvent) typeless_ = first_eid + i;
  }
  size_.store(first_eid + events.size, std::memory_order_release);
}

void EventTypes::check(int64_t num_events) const {
  const eid_t typeless = typeless_;
  if (typeless != kNoEvent) {
    throw std::invalid_argument("event " + std::to_string(typeless) +
                                " has a label outside [0, 65535], which is no type to sample by");
  }
  if (num_events > 0 && data() == nullptr) {
    throw std::invalid_argument("the graph's events have no labels, so there are no types to sample by");
  }
}

}  // namespace tgflow
