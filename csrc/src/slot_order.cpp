#include "tgflow/slot_order.hpp"

namespace tgflow {

void SlotOrder::clear() {
  for (Queue& queue : queues_) {
    queue.entries.clear();
    queue.head = 0;
  }
  num_entries_ = 0;
}

/// Moves the entries to the front once as many have left: at most one move an entry.
void SlotOrder::shrink(Queue& queue) {
  if (queue.head < queue.size()) return;
  queue.entries.erase(queue.entries.begin(), queue.entries.begin() + static_cast<std::ptrdiff_t>(queue.head));
  queue.head = 0;
}

}  // namespace tgflow
