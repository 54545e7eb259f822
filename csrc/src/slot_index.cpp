#include "tgflow/slot_index.hpp"

#include <algorithm>

namespace tgflow {

SlotIndex::SlotIndex(int64_t capacity) {
  std::size_t size = 16;
  while (size < 2 * static_cast<std::size_t>(capacity)) size *= 2;
  entries_.assign(size, {0, kNone});
  mask_ = static_cast<uint32_t>(size - 1);
}

void SlotIndex::insert(uint32_t tag, int32_t slot) {
  uint32_t i = tag & mask_;
  while (entries_[i].slot != kNone) i = (i + 1) & mask_;
  entries_[i] = {tag, slot};
}

void SlotIndex::erase(uint32_t tag, int32_t slot) {
  uint32_t gap = tag & mask_;
  while (entries_[gap].slot != slot) gap = (gap + 1) & mask_;
  for (uint32_t i = (gap + 1) & mask_; entries_[i].slot != kNone; i = (i + 1) & mask_) {
    const uint32_t home = entries_[i].tag & mask_;
    if (((i - home) & mask_) < ((i - gap) & mask_)) continue;  // the gap is before its home
    entries_[gap] = entries_[i];
    gap = i;
  }
  entries_[gap].slot = kNone;
}

void SlotIndex::clear() { std::fill(entries_.begin(), entries_.end(), Entry{0, kNone}); }

}  // namespace tgflow
