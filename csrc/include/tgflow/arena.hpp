// Memory for many small pieces that live long: carved out of large chunks, reused by size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tgflow {

/// Pieces never move. One thread at a time.
class Arena {
 public:
  /// Sizes and addresses are multiples of `alignment`, a power of two of at least 16.
  explicit Arena(size_t alignment) : alignment_(alignment), free_(kSmall) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(size_t bytes);
  /// Gives back a piece of that size, for a later one of the same size.
  void free(void* piece, size_t bytes);
  /// Bytes taken from the system.
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kSmall = 64;

  struct Chunk {
    void* data;
    size_t size;
  };

  void* carve(size_t bytes);
  std::vector<void*>& free_of(size_t bytes);

  size_t alignment_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<void*>> free_;             // by size in units of the alignment, of small pieces
  std::map<size_t, std::vector<void*>> free_large_;  // by size
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tgflow
