#include "tgflow/slot_index.hpp"

namespace tgflow {
namespace {

constexpr int64_t kEntriesASlot = 4;  // so that most look-ups end where they begin

int64_t table_size(int64_t capacity) {
  int64_t size = 16;
  while (size < kEntriesASlot * capacity) size *= 2;
  return size;
}

}  // namespace

SlotIndex::SlotIndex(int64_t capacity)
    : entries_(table_size(capacity), {0, kNone}), mask_(entries_.size() - 1) {}

void SlotIndex::insert(uint32_t hash, int32_t slot) {
  int64_t i = hash & mask_;
  while (entries_[i].slot != kNone) i = (i + 1) & mask_;
  entries_[i] = {hash, slot};
}

void SlotIndex::erase(uint32_t hash, int32_t slot) {
  int64_t gap = hash & mask_;
  while (entries_[gap].slot != slot) gap = (gap + 1) & mask_;
  for (int64_t i = (gap + 1) & mask_; entries_[i].slot != kNone; i = (i + 1) & mask_) {
    const int64_t home = entries_[i].hash & mask_;
    const bool gap_is_before_its_home = ((i - home) & mask_) < ((i - gap) & mask_);
    if (gap_is_before_its_home) continue;
    entries_[gap] = entries_[i];
    gap = i;
  }
  entries_[gap] = {0, kNone};
}

}  // namespace tgflow
