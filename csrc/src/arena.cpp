#include "tgflow/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace tgflow {
namespace {

constexpr size_t kFirstChunk = size_t{64} << 10;
constexpr size_t kHugePage = size_t{2} << 20;

/// Chunks grow with the arena, so that a small graph stays small, in whole huge pages once they fill.
size_t chunk_size(size_t held, size_t wanted) {
  const size_t grown = std::clamp(held / 8, kFirstChunk, 16 * kHugePage);
  const size_t step = std::max(grown, wanted) >= kHugePage ? kHugePage : size_t{4096};
  return (std::max(grown, wanted) + step - 1) / step * step;
}

}  // namespace

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) {
    ASAN_UNPOISON_MEMORY_REGION(chunk.data, chunk.size);
    std::free(chunk.data);
  }
}

void* Arena::allocate(size_t bytes) {
  bytes = (bytes + alignment_ - 1) / alignment_ * alignment_;
  const auto held = free_.find(bytes);
  if (held == free_.end() || held->second.empty()) return carve(bytes);
  void* piece = held->second.back();
  held->second.pop_back();
  ASAN_UNPOISON_MEMORY_REGION(piece, bytes);
  return piece;
}

void Arena::free(void* piece, size_t bytes) {
  bytes = (bytes + alignment_ - 1) / alignment_ * alignment_;
  free_[bytes].push_back(piece);
  ASAN_POISON_MEMORY_REGION(piece, bytes);
}

void* Arena::carve(size_t bytes) {
  if (next_ == nullptr || static_cast<size_t>(end_ - next_) < bytes) {
    const size_t size = chunk_size(static_cast<size_t>(bytes_), bytes);
    chunks_.reserve(chunks_.size() + 1);
    void* data = std::aligned_alloc(size >= kHugePage ? kHugePage : 4096, size);
    if (data == nullptr) throw std::bad_alloc();
    chunks_.push_back({data, size});
    bytes_ += static_cast<int64_t>(size);
#ifdef MADV_HUGEPAGE
    if (size >= kHugePage) madvise(data, size, MADV_HUGEPAGE);  // a hint: failing is fine
#endif
    next_ = static_cast<std::byte*>(data);
    end_ = next_ + size;
  }
  void* piece = next_;
  next_ += bytes;
  return piece;
}

}  // namespace tgflow
