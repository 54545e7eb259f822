#include "tgflow/arena.hpp"

#include <algorithm>
#include <new>

namespace tgflow {
namespace {

constexpr size_t kFirstChunk = size_t{64} << 10;
constexpr size_t kHugePage = size_t{2} << 20;

/// Chunks grow with the arena: a small graph stays small, and a large one uses huge pages.
size_t chunk_size(size_t held, size_t wanted, size_t huge_from) {
  const size_t growing =
      held < huge_from ? std::max(kFirstChunk, held / 16) : std::min(held / 16, 4 * kHugePage);
  const size_t least = std::max(wanted, growing);
  const size_t step = held < huge_from && least < kHugePage ? size_t{4096} : kHugePage;
  return (least + step - 1) / step * step;
}

}  // namespace

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) {
    ASAN_UNPOISON_MEMORY_REGION(chunk.data, chunk.size);
    memory_.free(chunk.data, static_cast<int64_t>(chunk.size));
  }
}

std::vector<void*>& Arena::free_of(size_t bytes) {
  const size_t units = bytes / alignment_;
  return units < kSmall ? free_[units] : free_large_[bytes];
}

void* Arena::allocate(size_t bytes) {
  bytes = (bytes + alignment_ - 1) / alignment_ * alignment_;
  std::vector<void*>& held = free_of(bytes);
  void* piece = nullptr;
  if (held.empty()) {
    piece = carve(bytes);
  } else {
    piece = held.back();
    held.pop_back();
  }
  bytes_in_use_ += static_cast<int64_t>(bytes);
  ASAN_UNPOISON_MEMORY_REGION(piece, bytes);
  return piece;
}

void Arena::free(void* piece, size_t bytes) noexcept {
  bytes = (bytes + alignment_ - 1) / alignment_ * alignment_;
  ASAN_POISON_MEMORY_REGION(piece, bytes);
  bytes_in_use_ -= static_cast<int64_t>(bytes);
  try {
    free_of(bytes).push_back(piece);
  } catch (const std::bad_alloc&) {  // then it is not reused
  }
}

void* Arena::carve(size_t bytes) {
  if (next_ == nullptr || static_cast<size_t>(end_ - next_) < bytes) {
    const size_t size = chunk_size(static_cast<size_t>(bytes_), bytes, huge_from_);
    if (chunks_.size() == chunks_.capacity()) chunks_.reserve(2 * chunks_.size() + 16);
    void* data = memory_.allocate(static_cast<int64_t>(size));
    if (data == nullptr) throw OutOfMemory(what_for_, static_cast<int64_t>(size));
    chunks_.push_back({data, size});
    bytes_ += static_cast<int64_t>(size);
    next_ = static_cast<std::byte*>(data);
    end_ = next_ + size;
  }
  void* piece = next_;
  next_ += bytes;
  return piece;
}

}  // namespace tgflow
