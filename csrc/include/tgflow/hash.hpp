// Hashing of 64-bit keys, and a set of them: open addressing, one array, no allocation per key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tgflow/detail/mix.hpp"

namespace tgflow {

/// An ordered pair of nodes as one key. Nodes fit 31 bits, so no pair equals `KeySet`'s empty slot.
inline uint64_t pair_key(node_t src, node_t dst) {
  return static_cast<uint64_t>(src) << 32 | static_cast<uint64_t>(dst);
}

/// A set of keys below 2^64 - 1.
class KeySet {
 public:
  explicit KeySet(int64_t expected = 0) {
    std::size_t capacity = 16;
    while (capacity < 2 * static_cast<std::size_t>(expected)) capacity *= 2;
    slots_.assign(capacity, kEmpty);
  }

  /// Adds `key`; false if it was there.
  bool insert(uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    uint64_t& slot = slots_[find(key)];
    if (slot == key) return false;
    slot = key;
    ++size_;
    return true;
  }

  bool contains(uint64_t key) const { return slots_[find(key)] == key; }

 private:
  static constexpr uint64_t kEmpty = ~0ULL;

  std::size_t find(uint64_t key) const {
    const std::size_t last = slots_.size() - 1;
    std::size_t i = mix64(key) & last;
    while (slots_[i] != kEmpty && slots_[i] != key) i = (i + 1) & last;
    return i;
  }

  void grow() {
    std::vector<uint64_t> old(2 * slots_.size(), kEmpty);
    old.swap(slots_);
    for (const uint64_t key : old) {
      if (key != kEmpty) slots_[find(key)] = key;
    }
  }

  std::vector<uint64_t> slots_;
  std::size_t size_ = 0;
};

}  // namespace tgflow
