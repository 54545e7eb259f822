// Where each cached id is: open addressing. Memory follows the number of slots, not that of ids.
#pragma once

#include <cstdint>

#include "tgflow/detail/mix.hpp"
#include "tgflow/huge_array.hpp"

namespace tgflow {

/// Ids -> slots, at most a quarter full, with linear probing. Deleting moves later entries back into the gap,
/// so that look-ups stay short however many ids have come and gone. An entry is 8 bytes: half of the id's
/// hash and the slot; whoever has the slots says which id is there.
class SlotIndex {
 public:
  static constexpr int32_t kNone = -1;

  explicit SlotIndex(int64_t capacity);

  static uint32_t hash(int64_t id) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(id))); }

  void prefetch(uint32_t hash) const { __builtin_prefetch(&entries_[hash & mask_]); }

  /// The first slot with this hash of which `is_it(slot)` holds, or kNone.
  template <typename IsIt>
  int32_t find(uint32_t hash, const IsIt& is_it) const {
    for (int64_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Entry entry = entries_[i];
      if (entry.slot == kNone || (entry.hash == hash && is_it(entry.slot))) return entry.slot;
    }
  }

  /// Adds an id that is not there; there are never more than `capacity`.
  void insert(uint32_t hash, int32_t slot);
  /// Removes a slot that is there.
  void erase(uint32_t hash, int32_t slot);
  void clear() { entries_.fill({0, kNone}); }

  int64_t bytes() const { return entries_.bytes(); }

 private:
  struct Entry {
    uint32_t hash;
    int32_t slot;
  };

  HugeArray<Entry> entries_;
  int64_t mask_;  ///< Below 2^32: the hash says where an entry belongs.
};

}  // namespace tgflow
