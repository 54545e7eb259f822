// Where each cached id is: open addressing. Memory follows the number of slots, not that of ids.
#pragma once

#include <cstdint>

#include "tgflow/hash.hpp"
#include "tgflow/huge_array.hpp"

namespace tgflow {

/// Ids -> slots, at most half full, with linear probing. Deleting moves later entries back into the gap, so
/// that look-ups stay short however many ids have come and gone.
class SlotIndex {
 public:
  static constexpr int32_t kNone = -1;

  explicit SlotIndex(int64_t capacity);

  void prefetch(int64_t id) const { __builtin_prefetch(&entries_[home(id)]); }

  /// The slot of `id`, or kNone.
  int32_t find(int64_t id) const {
    for (int64_t i = home(id);; i = (i + 1) & mask_) {
      if (entries_[i].slot == kNone || entries_[i].id == id) return entries_[i].slot;
    }
  }

  /// Adds an id that is not there; there are never more than `capacity`.
  void insert(int64_t id, int32_t slot);
  /// Removes an id that is there.
  void erase(int64_t id);
  void clear() { entries_.fill({0, kNone}); }

  int64_t bytes() const { return entries_.bytes(); }

 private:
  struct Entry {
    int64_t id;
    int32_t slot;
  };

  int64_t home(int64_t id) const { return static_cast<int64_t>(mix64(static_cast<uint64_t>(id))) & mask_; }

  HugeArray<Entry> entries_;
  int64_t mask_;
};

}  // namespace tgflow
