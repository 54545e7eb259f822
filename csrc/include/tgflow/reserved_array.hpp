// Arrays that grow without moving, so that readers in other threads never see them change place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tgflow {

/// Address space, of which only the committed beginning can be touched; fresh pages read as zero.
class ReservedMemory {
 public:
  /// Reserves `bytes`, or the largest half, quarter, ... of it that the system grants.
  explicit ReservedMemory(size_t bytes);
  ~ReservedMemory();
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  /// Bytes that can be touched by now, at least those asked for.
  size_t committed() const { return committed_; }
  /// Makes the first `bytes` usable. One thread at a time.
  void commit(size_t bytes);

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  size_t committed_ = 0;
};

template <typename T>
class ReservedArray {
 public:
  explicit ReservedArray(int64_t limit) : memory_(static_cast<size_t>(limit) * sizeof(T)) {}

  T* data() const { return static_cast<T*>(memory_.data()); }
  T& operator[](int64_t i) const { return data()[i]; }

  /// Makes elements [0, size) usable, zero until written. Throws std::length_error past the limit.
  void grow(int64_t size) {
    const size_t bytes = static_cast<size_t>(size) * sizeof(T);
    if (bytes > memory_.size()) {
      throw std::length_error("cannot grow to " + std::to_string(size) + " elements: the limit is " +
                              std::to_string(memory_.size() / sizeof(T)));
    }
    memory_.commit(bytes);
  }

 private:
  ReservedMemory memory_;
};

}  // namespace tgflow
