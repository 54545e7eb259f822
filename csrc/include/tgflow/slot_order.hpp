// In which order cached rows make room: queues of slots, written at their ends and read at their heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgflow {

/// Slots by level, and within a level by key. A slot that is used gets a larger key and a new entry at the
/// end of a queue; its old entry stays where it is and is passed over once it comes to the head.
/// `key_of(slot)` is the slot's present key.
class SlotOrder {
 public:
  explicit SlotOrder(std::size_t num_levels) : queues_(num_levels) {}

  /// `key` is above all keys of the level.
  void push(std::size_t level, int64_t key, int32_t slot) {
    queues_[level].entries.push_back({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), slot});
    ++num_entries_;
  }

  /// Appends the first slots to `out` until it has `size`, and forgets them. Slots for which `may_go(slot)`
  /// does not hold stay where they are.
  template <typename KeyOf, typename MayGo>
  void take(std::size_t size, const KeyOf& key_of, const MayGo& may_go, std::vector<int32_t>& out) {
    for (Queue& queue : queues_) {
      if (out.size() >= size) return;
      take_from(queue, size, key_of, may_go, out);
    }
  }

  /// Drops the entries that would be passed over.
  template <typename KeyOf>
  void purge(const KeyOf& key_of) {
    for (Queue& queue : queues_) {
      std::size_t kept = 0;
      for (std::size_t i = queue.head; i < queue.entries.size(); ++i) {
        if (i + kAhead < queue.entries.size()) __builtin_prefetch(&key_of(queue.entries[i + kAhead].slot));
        const Entry entry = queue.entries[i];
        queue.entries[kept] = entry;  // without a branch: half of them go
        kept += static_cast<std::size_t>(entry.key() == key_of(entry.slot));
      }
      num_entries_ -= static_cast<int64_t>(queue.size() - kept);
      queue.entries.resize(kept);
      queue.head = 0;
    }
  }
  void clear() {
    for (Queue& queue : queues_) {
      queue.entries.clear();
      queue.head = 0;
    }
    num_entries_ = 0;
  }

  /// Entries, those to be passed over included.
  int64_t num_entries() const { return num_entries_; }
  int64_t bytes() const { return num_entries_ * static_cast<int64_t>(sizeof(Entry)); }

 private:
  static constexpr std::size_t kAhead = 16;
  struct Entry {  // 12 bytes
    uint32_t key_low;
    uint32_t key_high;
    int32_t slot;

    int64_t key() const { return static_cast<int64_t>(key_high) << 32 | key_low; }
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
      if (queue.head + kAhead < queue.entries.size())
        __builtin_prefetch(&key_of(queue.entries[queue.head + kAhead].slot));
      const Entry entry = queue.entries[queue.head];
      if (entry.key() != key_of(entry.slot)) continue;
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

  /// Moves the entries to the front once as many have left: at most one move an entry.
  static void shrink(Queue& queue) {
    if (queue.head < queue.size()) return;
    queue.entries.erase(queue.entries.begin(),
                        queue.entries.begin() + static_cast<std::ptrdiff_t>(queue.head));
    queue.head = 0;
  }

  std::vector<Queue> queues_;
  std::vector<Entry> stay_;
  int64_t num_entries_ = 0;
};

}  // namespace tgflow
