#include "tgflow/slot_index.hpp"

namespace tgflow {
namespace {

int64_t table_size(int64_t capacity) {
  int64_t size = 16;
  while (size < 2 * capacity) size *= 2;
  return size;
}

}  // namespace

SlotIndex::SlotIndex(int64_t capacity)
    : entries_(table_size(capacity), {0, kNone}), mask_(entries_.size() - 1) {}

void SlotIndex::insert(int64_t id, int32_t slot) {
  int64_t i = home(id);
  while (entries_[i].slot != kNone) i = (i + 1) & mask_;
  entries_[i] = {id, slot};
}

void SlotIndex::erase(int64_t id) {
  int64_t gap = home(id);
  while (entries_[gap].id != id) gap = (gap + 1) & mask_;
  for (int64_t i = (gap + 1) & mask_; entries_[i].slot != kNone; i = (i + 1) & mask_) {
    const bool gap_is_before_its_home = ((i - home(entries_[i].id)) & mask_) < ((i - gap) & mask_);
    if (gap_is_before_its_home) continue;
    entries_[gap] = entries_[i];
    gap = i;
  }
  entries_[gap] = {0, kNone};
}

}  // namespace tgflow
