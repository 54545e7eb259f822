#include "tgflow/row_memo.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tgflow {
namespace {

/// Of an index of n entries, which has a power of two of places, 2 n or more of them.
constexpr int64_t kMostIndexBytes = 4 * 8;
constexpr int64_t kLeastIndexBytes = 16 * 8;
constexpr int64_t kMostRows = int64_t{1} << 30;

/// How many rows, each with a slot and its places in the index, there is room for.
int64_t capacity_of(int64_t row_and_slot_bytes, int64_t budget) {
  const int64_t each = row_and_slot_bytes + kMostIndexBytes;
  const int64_t capacity = std::min((budget - kLeastIndexBytes) / each, kMostRows);
  if (capacity >= 1) return capacity;
  throw std::invalid_argument("a memo of " + std::to_string(budget) +
                              " bytes has no room for a row, which takes " +
                              std::to_string(each + kLeastIndexBytes));
}

}  // namespace

RowMemo::RowMemo(int64_t dim, int64_t budget)
    : dim_(dim),
      slots_(capacity_of(dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(Slot)),
                         budget)),
      places_(slots_.size()),
      rows_(slots_.size() * dim) {}

int64_t RowMemo::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

uint32_t RowMemo::tag_of(const FrontierQuery& query, int64_t layer) {
  return static_cast<uint32_t>(mix64(hash_of(query) + static_cast<uint64_t>(layer)));
}

void RowMemo::move_to(int64_t stamp) {
  if (stamp <= stamp_) return;
  stamp_ = stamp;
  if (size_ > 0) places_.clear();
  size_ = hand_ = 0;
}

int32_t RowMemo::slot_of(const FrontierQuery& query, int64_t layer, uint32_t tag) const {
  return places_.find(tag, [&](int32_t i) { return slots_[i].query == query && slots_[i].layer == layer; });
}

int64_t RowMemo::find(int64_t stamp, const MemoKeys& keys, float* out, int64_t* missing) {
  const std::lock_guard lock(mutex_);
  move_to(stamp);
  constexpr int64_t kAhead = 8;
  int64_t num_missing = 0;
  for (int64_t i = 0; i < keys.size; ++i) {
    if (i + kAhead < keys.size) places_.prefetch(tag_of(keys.query(i + kAhead), keys.layer));
    const FrontierQuery query = keys.query(i);
    const int32_t slot = stamp < stamp_ ? -1 : slot_of(query, keys.layer, tag_of(query, keys.layer));
    if (slot < 0) {
      missing[num_missing++] = i;
      continue;
    }
    slots_[slot].was_asked = true;
    std::memcpy(out + i * dim_, rows_.data() + slot * dim_, static_cast<std::size_t>(dim_) * sizeof(float));
  }
  return num_missing;
}

int32_t RowMemo::free_slot() {
  if (size_ < slots_.size()) return size_++;
  for (;; hand_ = (hand_ + 1) % size_) {
    Slot& slot = slots_[hand_];
    if (slot.was_asked) {
      slot.was_asked = false;
      continue;
    }
    const int32_t found = hand_;
    places_.erase(slot.tag, found);
    hand_ = (hand_ + 1) % size_;
    return found;
  }
}

void RowMemo::add(int64_t stamp, const MemoKeys& keys, const float* rows) {
  const std::lock_guard lock(mutex_);
  move_to(stamp);
  if (stamp < stamp_) return;
  for (int64_t i = 0; i < keys.size; ++i) {
    const FrontierQuery query = keys.query(i);
    const uint32_t tag = tag_of(query, keys.layer);
    if (slot_of(query, keys.layer, tag) >= 0) continue;
    const int32_t slot = free_slot();
    slots_[slot] = {query, keys.layer, tag, false};
    places_.insert(tag, slot);
    std::memcpy(rows_.data() + slot * dim_, rows + i * dim_, static_cast<std::size_t>(dim_) * sizeof(float));
  }
}

}  // namespace tgflow
