#include "tgflow/slab.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "tgflow/memory.hpp"

namespace tgflow {
namespace {

constexpr int64_t kLeastBytes = 4096;
constexpr int64_t kGrowth = 4;  // a quarter of the requested size is added

int64_t aligned(int64_t bytes) {
  return (bytes + SlabPool::kAlignment - 1) / SlabPool::kAlignment * SlabPool::kAlignment;
}

std::shared_ptr<std::byte> ordinary_memory(int64_t bytes) {
  // one line of slack, as large blocks are aligned to pages, and small ones to less than columns
  const auto wanted = static_cast<std::size_t>(bytes + SlabPool::kAlignment);
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(allocate_huge(wanted)), &std::free);
  const auto past = reinterpret_cast<std::uintptr_t>(memory.get()) % SlabPool::kAlignment;
  std::byte* const first = memory.get() + (past == 0 ? 0 : SlabPool::kAlignment - past);
  return {std::move(memory), first};
}

}  // namespace

SlabPool::SlabPool(int64_t most_free, Allocate allocate)
    : most_free_(most_free), allocate_(allocate ? std::move(allocate) : Allocate(&ordinary_memory)) {}

SlabPool::Block SlabPool::take() {
  num_used_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return {};
  Block block = std::move(free_.back());
  free_.pop_back();
  return block;
}

void SlabPool::give_back(Block block) {
  num_used_.fetch_sub(1, std::memory_order_relaxed);
  if (block.memory == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<int64_t>(free_.size()) < most_free_) free_.push_back(std::move(block));
}

SlabPool::Block SlabPool::allocate(int64_t bytes) {
  bytes = std::max(bytes, last_bytes_.load(std::memory_order_relaxed));
  bytes = aligned(std::max(bytes + bytes / kGrowth, kLeastBytes));
  return {allocate_(bytes), bytes};
}

int64_t SlabPool::num_free() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(free_.size());
}

void Slab::begin() {
  if (is_taken_.exchange(true)) {
    throw std::invalid_argument("a slab takes one batch at a time: give calls at once their own ones");
  }
  is_read_ = is_filled_.exchange(false);
}

void Slab::end() {
  size_ = aligned(size_);  // within the block, and a multiple of every type's size
  pool_->note(size_);
  is_filled_.store(true, std::memory_order_release);
  is_taken_.store(false, std::memory_order_release);
}

int64_t Slab::add_bytes(int64_t bytes) {
  const int64_t offset = aligned(size_);
  const int64_t size = offset + bytes;
  if (size > block_.capacity) {
    SlabPool::Block larger = pool_->allocate(size);
    if (size_ > 0) std::memcpy(larger.memory.get(), block_.memory.get(), static_cast<std::size_t>(size_));
    if (is_read_) left_.push_back(std::move(block_.memory));
    is_read_ = false;
    block_ = std::move(larger);
  }
  size_ = size;
  return offset;
}

}  // namespace tgflow
