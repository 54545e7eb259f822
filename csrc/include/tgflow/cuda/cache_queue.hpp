// A walk over a cache's queue by one thread block. Device code alone.
#pragma once

#include "tgflow/cuda/block_scan.hpp"
#include "tgflow/cuda/cache.hpp"

namespace tgflow {

/// The threads of a block walk together, each over some neighboring entries at a time: what all of a step
/// read is read before one of them writes.
class CacheQueueWalk {
 public:
  explicit __device__ CacheQueueWalk(const DeviceCache& cache)
      : cache_(cache), head_(cache.progress->head), tail_(cache.progress->tail) {}

  /// Leaves out the entries that are not current, if `num_more` would not fit otherwise.
  __device__ void make_room(int64_t num_more) {
    if (tail_ - head_ + num_more <= cache_.queue.mask + 1) return;
    int64_t kept = head_;
    for (int64_t from = head_; from < tail_; from += step()) {
      Part part = read(from, tail_);
      for (int j = 0; j < kEach; ++j) part.takes[j] = is_current(part, j);
      kept += write(part, kept);
    }
    tail_ = kept;
    __syncthreads();
  }

  /// Takes the slots of the `num` oldest entries whose slots were used before position `begin`. Entries
  /// before the last of them that are passed over keep their order.
  __device__ void take(int64_t num, int64_t begin, int64_t* room) {
    __shared__ int64_t last;
    int64_t taken = 0, stay = 0, end = head_;
    for (int64_t from = head_; taken < num && from < tail_; from += step()) {
      Part part = read(from, tail_);
      int32_t own = 0;
      for (int j = 0; j < kEach; ++j) {
        part.takes[j] = is_current(part, j) && cache_.used[part.slot[j]] < begin;
        own += part.takes[j];
      }
      int32_t all;
      int64_t rank = taken + block_scan(own, all);
      for (int j = 0; j < kEach; ++j) {
        const bool takes = part.takes[j];
        if (takes && rank < num) room[rank] = part.slot[j];
        part.takes[j] = !takes && rank < num && is_current(part, j);
        rank += takes;
        if (takes && rank == num) last = from + threadIdx.x * kEach + j + 1;
      }
      taken += all;
      stay += write(part, head_ + stay);
      end = from + step();
    }
    __syncthreads();
    if (taken >= num && num > 0) end = last;
    move_up(stay, end);
    head_ = end - stay;
  }

  /// Keeps where the queue is now, and counts `num_appended` entries that come next.
  __device__ void finish(int64_t num_appended) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    cache_.progress->head = head_;
    cache_.progress->appended = tail_;
    cache_.progress->tail = tail_ + num_appended;
  }

 private:
  static constexpr int kEach = 4;
  struct Part {
    int32_t slot[kEach];
    int64_t stamp[kEach];
    bool takes[kEach];
  };

  static __device__ int64_t step() { return static_cast<int64_t>(blockDim.x) * kEach; }

  /// This thread's entries of the step at `from`; slot -1 from `end` on.
  __device__ Part read(int64_t from, int64_t end) const {
    Part part;
    for (int j = 0; j < kEach; ++j) {
      const int64_t number = from + threadIdx.x * kEach + j;
      part.slot[j] = number < end ? cache_.queue.slot[number & cache_.queue.mask] : -1;
      part.stamp[j] = number < end ? cache_.queue.stamp[number & cache_.queue.mask] : 0;
    }
    return part;
  }
  __device__ bool is_current(const Part& part, int j) const {
    return part.slot[j] >= 0 && cache_.stamp(part.slot[j]) == part.stamp[j];
  }
  /// Writes the entries that are taken, of all threads, from `to` on; returns how many.
  __device__ int64_t write(const Part& part, int64_t to) const {
    int32_t own = 0, all;
    for (int j = 0; j < kEach; ++j) own += part.takes[j];
    to += block_scan(own, all);
    for (int j = 0; j < kEach; ++j) {
      if (part.takes[j]) put(to++, part, j);
    }
    return all;
  }
  __device__ void put(int64_t number, const Part& part, int j) const {
    cache_.queue.slot[number & cache_.queue.mask] = part.slot[j];
    cache_.queue.stamp[number & cache_.queue.mask] = part.stamp[j];
  }
  /// Moves `num` entries from the head to before `end`, the last ones first.
  __device__ void move_up(int64_t num, int64_t end) const {
    if (head_ + num == end) return;
    for (int64_t rest = num; rest > 0; rest -= step()) {
      const int64_t first = rest > step() ? rest - step() : 0;
      const Part part = read(head_ + first, head_ + rest);
      __syncthreads();
      for (int j = 0; j < kEach; ++j) {
        if (part.slot[j] >= 0) put(end - num + first + threadIdx.x * kEach + j, part, j);
      }
      __syncthreads();
    }
  }

  const DeviceCache& cache_;
  int64_t head_, tail_;
};

}  // namespace tgflow
