// Arrays that are read at random places, in large pages where the system has such.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace tgflow {

/// Returns memory of `bytes`, aligned to cache lines or to large pages; contents undefined. To be freed with
/// std::free. Throws std::bad_alloc.
void* allocate_huge(std::size_t bytes);

/// `size` plain values, contents undefined; owns them.
template <typename T>
class HugeArray {
  static_assert(std::is_trivially_copyable_v<T>, "neither constructed nor destroyed");

 public:
  explicit HugeArray(int64_t size)
      : values_(static_cast<T*>(allocate_huge(static_cast<std::size_t>(size) * sizeof(T))), &release),
        size_(size) {}
  HugeArray(int64_t size, T value) : HugeArray(size) { fill(value); }

  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }
  T& operator[](int64_t i) { return values_.get()[i]; }
  const T& operator[](int64_t i) const { return values_.get()[i]; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  void fill(T value) {
    for (int64_t i = 0; i < size_; ++i) values_.get()[i] = value;
  }

 private:
  static void release(T* values);

  std::unique_ptr<T, void (*)(T*)> values_;
  int64_t size_;
};

void release_huge(void* memory);

template <typename T>
void HugeArray<T>::release(T* values) {
  release_huge(values);
}

}  // namespace tgflow
