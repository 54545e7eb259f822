// A stable sort by a 32-bit key, linear even for skewed keys.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace tgflow {

/// Sorts `items` by `key(item)`, equal keys in their old order. Takes as many passes as the largest key
/// needs. `other` is its working space.
template <typename Item, typename Key>
void radix_sort(std::vector<Item>& items, std::vector<Item>& other, Key key) {
  constexpr int kBits = 11;
  uint32_t largest = 0;
  for (const Item& item : items) largest = std::max(largest, key(item));
  other.resize(items.size());
  for (int shift = 0; shift < 32 && (largest >> shift) != 0; shift += kBits) {
    std::array<size_t, (1 << kBits)> place{};
    const auto digit = [&](const Item& item) { return (key(item) >> shift) & ((1u << kBits) - 1); };
    for (const Item& item : items) ++place[digit(item)];
    size_t sum = 0;
    for (size_t& count : place) {
      const size_t size = count;
      count = sum;
      sum += size;
    }
    for (const Item& item : items) other[place[digit(item)]++] = item;
    items.swap(other);
  }
}

}  // namespace tgflow
