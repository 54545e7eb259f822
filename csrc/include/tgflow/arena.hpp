// Arena for many small, long-lived pieces: cut from large chunks, reused by size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tgflow/epochs.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// Pieces never move. One thread at a time.
class Arena final : public Reclaimer {
 public:
  /// Sizes and addresses are multiples of `alignment`, a power of two of at least 16.
  /// `what_for` is part of the error without memory. Once it holds `huge_from` bytes, it takes huge pages.
  Arena(size_t alignment, TierMemory& memory, const char* what_for, int64_t huge_from = int64_t{256} << 10)
      : alignment_(alignment),
        memory_(memory),
        what_for_(what_for),
        huge_from_(static_cast<size_t>(huge_from)),
        free_(kSmall) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Throws OutOfMemory.
  void* allocate(size_t bytes);
  /// Frees a piece of that size, for reuse by a later one of the same size.
  void free(void* piece, size_t bytes) noexcept;
  void reclaim(uint64_t piece, uint64_t bytes) noexcept override {
    free(reinterpret_cast<void*>(piece), bytes);
  }
  /// Bytes taken from the system.
  int64_t bytes() const { return bytes_; }
  int64_t bytes_in_use() const { return bytes_in_use_; }

 private:
  static constexpr size_t kSmall = 64;

  struct Chunk {
    void* data;
    size_t size;
  };

  void* carve(size_t bytes);
  std::vector<void*>& free_of(size_t bytes);

  size_t alignment_;
  TierMemory& memory_;
  const char* what_for_;
  size_t huge_from_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<void*>> free_;             // by size in units of the alignment, of small pieces
  std::map<size_t, std::vector<void*>> free_large_;  // by size
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
  int64_t bytes_ = 0;
  int64_t bytes_in_use_ = 0;
};

}  // namespace tgflow
