#include "tgflow/event_types.hpp"

#include <stdexcept>
#include <string>

#include "tgflow/event_log.hpp"

namespace tgflow {

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
