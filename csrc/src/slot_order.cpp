#include "tgflow/slot_order.hpp"

namespace tgflow {

void SlotOrder::purge(const int64_t* keys) {
  for (Queue& queue : queues_) {
    std::size_t kept = 0;
    for (std::size_t i = queue.head; i < queue.entries.size(); ++i) {
      const Entry entry = queue.entries[i];
      queue.entries[kept] = entry;  // without a branch: half of them go
      kept += static_cast<std::size_t>(entry.is_present(keys));
    }
    num_entries_ -= static_cast<int64_t>(queue.size() - kept);
    queue.entries.resize(kept);
    queue.head = 0;
  }
}

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
