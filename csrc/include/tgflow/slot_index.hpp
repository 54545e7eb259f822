// Where each cached id is: open addressing over slots. Memory follows the number of slots, not that of ids.
#pragma once

#include <cstdint>
#include <vector>

#include "tgflow/hash.hpp"

namespace tgflow {

/// Hashes -> slots, at most half full, with linear probing. Deleting moves later entries back into the gap,
/// so that look-ups stay short however many ids have come and gone.
class SlotIndex {
 public:
  static constexpr int32_t kNone = -1;

  explicit SlotIndex(int64_t capacity);

  /// Half of the hash decides where an id is looked for, and is compared before the id is.
  static uint32_t tag(int64_t id) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(id)) >> 32); }

  void prefetch(uint32_t tag) const { __builtin_prefetch(&entries_[tag & mask_]); }

  /// The slot with `tag` for which `is_it(slot)`, or kNone.
  template <typename IsIt>
  int32_t find(uint32_t tag, const IsIt& is_it) const {
    for (uint32_t i = tag & mask_; entries_[i].slot != kNone; i = (i + 1) & mask_) {
      if (entries_[i].tag == tag && is_it(entries_[i].slot)) return entries_[i].slot;
    }
    return kNone;
  }
  /// The first slot with `tag`, or kNone: most likely the one that is looked for.
  int32_t guess(uint32_t tag) const {
    return find(tag, [](int32_t) { return true; });
  }

  /// Adds a slot that is not there; there are never more than `capacity`.
  void insert(uint32_t tag, int32_t slot);
  /// Removes a slot that is there, under the tag it was inserted with.
  void erase(uint32_t tag, int32_t slot);
  void clear();

  int64_t bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(Entry)); }

 private:
  struct Entry {
    uint32_t tag;
    int32_t slot;
  };

  std::vector<Entry> entries_;
  uint32_t mask_;
};

}  // namespace tgflow
