// In which order cached rows make room: queues of slots, written at their ends and read at their heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgflow {

/// Slots by level, and within a level by key. A slot that is used gets a larger key and a new entry at the
/// end of a queue; its old entry stays where it is and is passed over once it comes to the head.
class SlotOrder {
 public:
  explicit SlotOrder(std::size_t num_levels) : queues_(num_levels) {}

  /// `key` is above all keys of the level.
  void push(std::size_t level, int64_t key, int32_t slot) {
    queues_[level].entries.push_back({key, slot});
    ++num_entries_;
  }

  /// Appends the first slots to `out` until it has `size`, and forgets them. Entries whose key is not
  /// `key_of(slot)` are dropped; slots for which `may_go(slot)` does not hold stay where they are.
  template <typename KeyOf, typename MayGo>
  void take(std::size_t size, const KeyOf& key_of, const MayGo& may_go, std::vector<int32_t>& out) {
    for (Queue& queue : queues_) {
      if (out.size() >= size) return;
      take_from(queue, size, key_of, may_go, out);
    }
  }

  /// Drops the entries whose key is not `key_of(slot)`.
  template <typename KeyOf>
  void purge(const KeyOf& key_of) {
    for (Queue& queue : queues_) {
      std::size_t kept = 0;
      for (std::size_t i = queue.head; i < queue.entries.size(); ++i) {
        if (queue.entries[i].key == key_of(queue.entries[i].slot)) queue.entries[kept++] = queue.entries[i];
      }
      num_entries_ -= static_cast<int64_t>(queue.size() - kept);
      queue.entries.resize(kept);
      queue.head = 0;
    }
  }

  void clear();

  /// Entries, dropped ones that are still held included.
  int64_t num_entries() const { return num_entries_; }

 private:
  struct Entry {
    int64_t key;
    int32_t slot;
  };
  struct Queue {
    std::vector<Entry> entries;
    std::size_t head = 0;

    std::size_t size() const { return entries.size() - head; }
  };

  template <typename KeyOf, typename MayGo>
  void take_from(Queue& queue, std::size_t size, const KeyOf& key_of, const MayGo& may_go,
                 std::vector<int32_t>& out) {
    const std::size_t before = queue.size();
    stay_.clear();
    for (; out.size() < size && queue.head < queue.entries.size(); ++queue.head) {
      const Entry entry = queue.entries[queue.head];
      if (entry.key != key_of(entry.slot)) continue;
      if (may_go(entry.slot)) {
        out.push_back(entry.slot);
      } else {
        stay_.push_back(entry);
      }
    }
    while (!stay_.empty()) {
      queue.entries[--queue.head] = stay_.back();
      stay_.pop_back();
    }
    num_entries_ -= static_cast<int64_t>(before - queue.size());
    shrink(queue);
  }

  static void shrink(Queue& queue);

  std::vector<Queue> queues_;
  std::vector<Entry> stay_;
  int64_t num_entries_ = 0;
};

}  // namespace tgflow
