// Numbers for ids in order of first appearance, found by hash: open addressing, one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tgflow/hash.hpp"

namespace tgflow {

/// Distinct ids, at least 0, numbered from 0 as they are added.
class Numbers {
 public:
  /// Forgets all ids; keeps its room.
  void clear() {
    slots_.assign(slots_.size(), -1);
    ids_.clear();
  }

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  const std::vector<int64_t>& ids() const { return ids_; }
  void prefetch(int64_t id) const { __builtin_prefetch(&slots_[home(id)]); }

  /// The number of `id`, or -1.
  int32_t find(int64_t id) const { return slots_[seek(id)]; }

  /// The number of `id`, which gets the next one if it had none.
  int32_t add(int64_t id) {
    if (2 * (ids_.size() + 1) > slots_.size()) grow();
    int32_t& slot = slots_[seek(id)];
    if (slot < 0) {
      slot = static_cast<int32_t>(ids_.size());
      ids_.push_back(id);
    }
    return slot;
  }

 private:
  std::size_t home(int64_t id) const { return mix64(static_cast<uint64_t>(id)) & (slots_.size() - 1); }

  /// Where the number of `id` is, or would be.
  std::size_t seek(int64_t id) const {
    std::size_t i = home(id);
    while (slots_[i] >= 0 && ids_[static_cast<std::size_t>(slots_[i])] != id)
      i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  void grow() {
    slots_.assign(2 * slots_.size(), -1);
    for (std::size_t i = 0; i < ids_.size(); ++i) slots_[seek(ids_[i])] = static_cast<int32_t>(i);
  }

  std::vector<int32_t> slots_ = std::vector<int32_t>(16, -1);
  std::vector<int64_t> ids_;
};

}  // namespace tgflow
