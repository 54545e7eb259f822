// Memory of prepared batches: one block each, reused after its last reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tgflow {

/// Unused blocks of memory, the most recently used first. Thread-safe.
class SlabPool {
 public:
  struct Block {
    std::shared_ptr<std::byte> memory;
    int64_t capacity = 0;
  };
  /// Returns memory of that size in bytes, aligned to `kAlignment`; throws where there is none.
  using Allocate = std::function<std::shared_ptr<std::byte>(int64_t)>;

  static constexpr int64_t kAlignment = 256;  ///< Of columns, in bytes: as of torch's allocations.

  /// Keeps at most `most_free` unused blocks. Without `allocate` they are ordinary memory.
  explicit SlabPool(int64_t most_free, Allocate allocate = {});

  /// A used block, or an empty one.
  Block take();
  void give_back(Block block);
  /// A block of 5/4 of the larger of `bytes` and the last batch's size, so that it rarely grows.
  Block allocate(int64_t bytes);
  /// Records the size of a batch in bytes.
  void note(int64_t bytes) { last_bytes_.store(bytes, std::memory_order_relaxed); }

  int64_t num_used() const { return num_used_.load(std::memory_order_relaxed); }
  int64_t num_free() const;

 private:
  const int64_t most_free_;
  const Allocate allocate_;
  std::atomic<int64_t> last_bytes_{0};
  std::atomic<int64_t> num_used_{0};
  mutable std::mutex mutex_;
  std::vector<Block> free_;
};

/// The memory of batches, one after the other: readable while this object lives; then its block is
/// reused. A batch that is added leaves readers of earlier ones their memory.
class Slab {
 public:
  explicit Slab(std::shared_ptr<SlabPool> pool) : pool_(std::move(pool)), block_(pool_->take()) {}
  ~Slab() { pool_->give_back(std::move(block_)); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  /// Claims it to add a batch. Throws std::invalid_argument while another one is added.
  void begin();
  /// Ends the batch: its memory does not move until another one is added.
  void end();
  bool is_filled() const { return is_filled_.load(std::memory_order_acquire); }

  /// Adds room for `size` values at the end, and returns its offset in bytes. The block may move.
  template <typename T>
  int64_t add(int64_t size) {
    return add_bytes(size * static_cast<int64_t>(sizeof(T)));
  }
  /// The values at an offset from `add`; valid until the next `add`.
  template <typename T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(block_.memory.get() + offset);
  }
  std::byte* data() const { return block_.memory.get(); }
  /// Bytes written, up to a whole number of `SlabPool::kAlignment`.
  int64_t size() const { return size_; }

 private:
  int64_t add_bytes(int64_t bytes);

  std::shared_ptr<SlabPool> pool_;
  SlabPool::Block block_;
  std::vector<std::shared_ptr<std::byte>> left_;  // blocks that earlier batches were read from
  int64_t size_ = 0;
  bool is_read_ = false;  // whether earlier batches are in `block_`
  std::atomic<bool> is_taken_{false};
  std::atomic<bool> is_filled_{false};
};

}  // namespace tgflow
