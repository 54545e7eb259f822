// Memory of tiers, arrays in large pages, and arrays that grow in place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Marks used memory for AddressSanitizer; a no-op without it.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace tgflow {

/// Thrown without memory in any tier; the caller's object is unchanged.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(const std::string& what_for, int64_t bytes)
      : message_("out of memory: " + what_for + " asked for " + std::to_string(bytes) + " bytes") {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Allocator of a tier's memory.
class TierMemory {
 public:
  virtual ~TierMemory() = default;
  /// Aligned to at least 64 bytes; null if out of memory. Throws FileError if a file has no room.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* chunk, int64_t bytes) noexcept = 0;
};

/// Ordinary memory, in huge pages from 2 MB on.
class HostMemory : public TierMemory {
 public:
  void* allocate(int64_t bytes) noexcept override;
  void free(void* chunk, int64_t bytes) noexcept override;
};

/// Memory in files of a folder, so that the system can drop its pages and read them again. The files have no
/// names: they end with their memory, or with the process. Their bytes are allocated before they are mapped,
/// so that a full disk is an error here and no signal later.
class DiskMemory : public TierMemory {
 public:
  explicit DiskMemory(std::string folder, std::string what_for = "table='disk'",
                      std::string remedy = "free some, or use table='host'")
      : folder_(std::move(folder)), what_for_(std::move(what_for)), remedy_(std::move(remedy)) {}

  void* allocate(int64_t bytes) override;
  void free(void* chunk, int64_t bytes) noexcept override;
  /// Returns the descriptor of a new file of the folder.
  int open() const;
  /// Adds bytes [begin, end) to a file, its size until then, and maps them at an address; null: any.
  void* extend(int file, size_t begin, size_t end, void* address) const;

 private:
  std::string folder_, what_for_, remedy_;
};

/// Pages that are about to be read: the disk reads them at once, where faults would wait for one at a time.
class ReadAhead {
 public:
  void add(const void* address) { pages_[size_++] = reinterpret_cast<uintptr_t>(address) / kPage * kPage; }
  /// Starts to read the pages, unless all of a sample are in memory, and forgets them.
  void start() noexcept;

 private:
  static constexpr size_t kMost = 4096, kSample = 128;
  static constexpr uintptr_t kPage = 4096;  // or a part of one

  uintptr_t pages_[kMost];
  size_t size_ = 0;
};

/// Returns memory of `bytes`, aligned to cache lines, or to large pages from 2 MB on; contents undefined.
/// Free it with std::free. Throws std::bad_alloc.
void* allocate_huge(size_t bytes);

/// `size` plain values, contents undefined; owns them. In a file with `disk`, else in large pages.
template <typename T>
class HugeArray {
  static_assert(std::is_trivially_copyable_v<T>, "neither constructed nor destroyed");

 public:
  explicit HugeArray(int64_t size, std::shared_ptr<DiskMemory> disk = nullptr)
      : values_(static_cast<T*>(disk == nullptr ? allocate_huge(static_cast<size_t>(size) * sizeof(T))
                                                : disk->allocate(size * static_cast<int64_t>(sizeof(T)))),
                Deleter{disk, size * static_cast<int64_t>(sizeof(T))}),
        size_(size) {}
  HugeArray(int64_t size, T value, std::shared_ptr<DiskMemory> disk = nullptr)
      : HugeArray(size, std::move(disk)) {
    fill(value);
  }

  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }
  T& operator[](int64_t i) { return values_.get()[i]; }
  const T& operator[](int64_t i) const { return values_.get()[i]; }
  int64_t size() const { return size_; }
  const std::shared_ptr<DiskMemory>& disk() const { return values_.get_deleter().disk; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  void fill(T value) {
    for (int64_t i = 0; i < size_; ++i) values_.get()[i] = value;
  }

 private:
  struct Deleter {
    std::shared_ptr<DiskMemory> disk;
    int64_t bytes;
    void operator()(T* values) const { disk == nullptr ? std::free(values) : disk->free(values, bytes); }
  };

  std::unique_ptr<T, Deleter> values_;
  int64_t size_;
};

/// Address space of which only the committed beginning is accessible; fresh pages read as zero.
class ReservedMemory {
 public:
  /// Reserves `bytes`, or the largest half, quarter, ... of it that the system grants; with `disk` what is
  /// committed is in a file.
  explicit ReservedMemory(size_t bytes, std::shared_ptr<DiskMemory> disk = nullptr);
  ~ReservedMemory();
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  /// Accessible bytes, at least those committed.
  size_t committed() const { return committed_; }
  /// Makes the first `bytes` usable. One thread at a time. Throws OutOfMemory, or FileError without disk.
  void commit(size_t bytes);
  /// Replaces committed bytes, which never change again, by those of a file from `offset` on, so that the
  /// system can drop them from memory and read them again. Returns false and changes nothing if they differ,
  /// a number is no multiple of a page, or the system does not map the file. Others may be reading.
  bool map_file(size_t begin, size_t bytes, int fd, int64_t offset);
  /// Frees the whole pages of the first `bytes`, also mapped ones; they read as zero from then on.
  void drop(size_t bytes);
  /// Uses no large pages from now on: most bytes stay zero or are cleared.
  void use_small_pages();
  /// Makes committed bytes zero, whole pages, and frees them. Others may be reading.
  void clear(size_t begin, size_t bytes);

 private:
  void give_back(size_t begin, size_t bytes) noexcept;

  void* data_ = nullptr;
  size_t size_ = 0;
  size_t committed_ = 0;
  size_t dropped_ = 0;
  bool has_small_pages_ = false;
  std::shared_ptr<DiskMemory> disk_;
  int file_ = -1;
};

/// Values that grow in place, so that their address is constant for readers in other threads.
template <typename T>
class ReservedArray {
 public:
  explicit ReservedArray(int64_t limit, std::shared_ptr<DiskMemory> disk = nullptr)
      : memory_(static_cast<size_t>(limit) * sizeof(T), std::move(disk)) {}

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
  /// Elements [begin, end), as `ReservedMemory::map_file` does it.
  bool map_file(int64_t begin, int64_t end, int fd, int64_t offset) {
    if (offset < 0) throw std::invalid_argument("offset must be at least 0, got " + std::to_string(offset));
    return memory_.map_file(static_cast<size_t>(begin) * sizeof(T),
                            static_cast<size_t>(end - begin) * sizeof(T), fd, offset);
  }
  /// Frees elements [0, end), as `ReservedMemory::drop`.
  void drop(int64_t end) { memory_.drop(static_cast<size_t>(end) * sizeof(T)); }
  void use_small_pages() { memory_.use_small_pages(); }
  /// Clears elements [begin, end), as `ReservedMemory::clear`.
  void clear(int64_t begin, int64_t end) {
    memory_.clear(static_cast<size_t>(begin) * sizeof(T), static_cast<size_t>(end - begin) * sizeof(T));
  }

 private:
  ReservedMemory memory_;
};

/// An array of which most elements may become zero again: the memory of pages of zeros is freed, and they
/// are skipped. One thread at a time grows, marks and visits it; any number may read elements.
template <typename T>
class SparseArray : public ReservedArray<T> {
 public:
  static constexpr int64_t kPage = 4096 / sizeof(T);  ///< Elements of a page.

  using ReservedArray<T>::ReservedArray;

  void grow(int64_t size) {
    ReservedArray<T>::grow(size);
    const auto pages = static_cast<size_t>((size + kPage - 1) / kPage);
    if (pages > is_used_.size()) is_used_.resize(pages);
  }
  /// Call it before element `i` becomes other than zero.
  void mark(int64_t i) { is_used_[static_cast<size_t>(i / kPage)] = 1; }
  /// Calls `use(i)` for all elements other than zero.
  template <typename Use>
  void for_each(const Use& use) const {
    for (size_t page = 0; page < is_used_.size(); ++page) {
      if (is_used_[page] == 0) continue;
      const int64_t begin = static_cast<int64_t>(page) * kPage;
      for (int64_t i = begin; i < begin + kPage; ++i) {
        if ((*this)[i] != T{}) use(i);
      }
    }
  }
  /// Frees pages of zeros.
  void free_zeros() {
    for (size_t page = 0; page < is_used_.size(); ++page) {
      const int64_t begin = static_cast<int64_t>(page) * kPage;
      const T* const first = this->data() + begin;
      if (is_used_[page] == 0 || std::any_of(first, first + kPage, [](T x) { return x != T{}; })) continue;
      this->clear(begin, begin + kPage);
      is_used_[page] = 0;
    }
  }
  int64_t bytes() const {
    return 4096 * std::count(is_used_.begin(), is_used_.end(), 1) + static_cast<int64_t>(is_used_.size());
  }

 private:
  std::vector<uint8_t> is_used_;  ///< By page.
};

}  // namespace tgflow
