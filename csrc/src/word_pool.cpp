#include "tgflow/word_pool.hpp"

#include <new>

namespace tgflow {

uint32_t WordPool::allocate(int64_t words) {
  uint32_t& freed = free_of(words);
  if (freed != 0) {
    const uint32_t piece = freed;
    freed = *at<uint32_t>(piece);
    if (freed == 0 && static_cast<size_t>(words) >= kSmall) free_large_.erase(words);
    return piece;
  }
  if (static_cast<size_t>(words) >= kSmall) free_large_.erase(words);
  if (next_end_ - next_ < words && !free_large_.empty()) {
    const auto [size, piece] = *free_large_.rbegin();
    if (size >= kLarge && size >= words) {
      if (next_end_ > next_) free(static_cast<uint32_t>(next_), next_end_ - next_);
      next_ = allocate(size);
      next_end_ = next_ + size;
    }
  }
  if (next_end_ - next_ >= words) {
    next_ += words;
    return static_cast<uint32_t>(next_ - words);
  }
  words_.grow(end_ + words);
  end_ += words;
  return static_cast<uint32_t>(end_ - words);
}

void WordPool::free(uint32_t piece, int64_t words) noexcept {
  try {
    uint32_t& last = free_of(words);
    *at<uint32_t>(piece) = last;
    last = piece;
  } catch (const std::bad_alloc&) {  // then it is not reused
  }
}

}  // namespace tgflow
