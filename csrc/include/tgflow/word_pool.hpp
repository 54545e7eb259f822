// Memory of many small pieces, found by 4-byte numbers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "tgflow/memory.hpp"

namespace tgflow {

/// Pieces of words of 8 bytes, each found by the number of its first word. Freed pieces are reused by size,
/// and large ones cut up. One thread at a time allocates and frees.
class WordPool {
 public:
  explicit WordPool(std::shared_ptr<DiskMemory> disk = nullptr) : words_(kLimit, std::move(disk)) {}

  static constexpr int64_t kLimit = int64_t{1} << 31;  ///< Words.

  /// Contents undefined; never 0. Throws OutOfMemory, or std::length_error past the limit.
  uint32_t allocate(int64_t words);
  void free(uint32_t piece, int64_t words) noexcept;
  template <typename T>
  T* at(uint32_t piece) const {
    return reinterpret_cast<T*>(words_.data() + piece);
  }
  int64_t bytes() const { return end_ * static_cast<int64_t>(sizeof(uint64_t)); }

 private:
  static constexpr size_t kSmall = 64;
  static constexpr int64_t kLarge = 512;

  uint32_t& free_of(int64_t words) {
    return static_cast<size_t>(words) < kSmall ? free_[static_cast<size_t>(words)] : free_large_[words];
  }

  ReservedArray<uint64_t> words_;
  int64_t end_ = 1;
  int64_t next_ = 0, next_end_ = 0;      ///< The rest of a large freed piece.
  std::array<uint32_t, kSmall> free_{};  ///< By size: the last freed piece, which has the one before.
  std::map<int64_t, uint32_t> free_large_;
};

}  // namespace tgflow
