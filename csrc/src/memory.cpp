#include "tgflow/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

// The core's own large allocations report their size; a sanitizer replaces these functions itself. Small
// ones do not, as the message takes memory too.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t bytes) {
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory != nullptr) return memory;
  if (bytes < 4096) throw std::bad_alloc();
  throw tgflow::OutOfMemory("the native core", static_cast<int64_t>(bytes));
}
#endif

namespace tgflow {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kStep = size_t{1} << 20;           // committing is a system call
constexpr size_t kHugePagesFrom = size_t{8} << 20;  // below, they would cost more memory than they save time

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

/// A hint: failure is ignored.
void prefer_huge_pages(void* memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* HostMemory::allocate(int64_t bytes) noexcept {
  const size_t size = static_cast<size_t>(bytes);
  void* chunk = std::aligned_alloc(size % kHugePage == 0 ? kHugePage : kLine, size);
  if (chunk != nullptr && size >= kHugePage) prefer_huge_pages(chunk, size);
  return chunk;
}

void HostMemory::free(void* chunk, int64_t) noexcept { std::free(chunk); }

void* allocate_huge(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : kLine;
  bytes = round_up(std::max<size_t>(bytes, 1), align);
  void* memory = std::aligned_alloc(align, bytes);
  if (memory == nullptr) throw OutOfMemory("the native core", static_cast<int64_t>(bytes));
  if (align == kHugePage) prefer_huge_pages(memory, bytes);
  return memory;
}

ReservedMemory::ReservedMemory(size_t bytes) : size_(round_up(bytes, kStep)) {
  for (; size_ >= kStep; size_ = round_up(size_ / 2, kStep)) {
    data_ = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ != MAP_FAILED) return;
    if (size_ == kStep) break;
  }
  throw OutOfMemory("the address space of a table", static_cast<int64_t>(round_up(bytes, kStep)));
}

ReservedMemory::~ReservedMemory() { munmap(data_, size_); }

void ReservedMemory::commit(size_t bytes) {
  if (bytes <= committed_) return;
  const size_t target = std::min(size_, round_up(std::max(bytes, 2 * committed_), kStep));
  auto* const fresh = static_cast<std::byte*>(data_) + committed_;  // before it there may be files
  if (mprotect(fresh, target - committed_, PROT_READ | PROT_WRITE) != 0) {
    throw OutOfMemory("a table in host memory", static_cast<int64_t>(target));
  }
  if (committed_ >= kHugePagesFrom && !has_small_pages_) {
    prefer_huge_pages(fresh, target - committed_);
  } else if (target >= kHugePagesFrom && !has_small_pages_) {
    prefer_huge_pages(data_, target);
  }
  committed_ = target;
}

void ReservedMemory::use_small_pages() {
  has_small_pages_ = true;
#ifdef MADV_NOHUGEPAGE
  madvise(data_, size_, MADV_NOHUGEPAGE);
#endif
}

void ReservedMemory::clear(size_t begin, size_t bytes) {
  if (!has_small_pages_) use_small_pages();
  auto* const held = static_cast<std::byte*>(data_) + begin;
  if (madvise(held, bytes, MADV_DONTNEED) != 0) std::memset(held, 0, bytes);  // larger pages than these
}

void ReservedMemory::drop(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t end = std::min(bytes, committed_) / page * page;
  if (end <= dropped_) return;
  auto* const held = static_cast<std::byte*>(data_) + dropped_;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(held, end - dropped_, PROT_READ, flags, -1, 0) != MAP_FAILED) dropped_ = end;
}

#ifdef MREMAP_FIXED
bool ReservedMemory::map_file(size_t begin, size_t bytes, int fd, int64_t offset) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || begin % page != 0 || bytes % page != 0 || static_cast<size_t>(offset) % page != 0) {
    return false;
  }
  void* const file = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, offset);
  if (file == MAP_FAILED) return false;
  void* const held = static_cast<std::byte*>(data_) + begin;
  if (std::memcmp(file, held, bytes) == 0) {
    madvise(file, bytes, MADV_DONTNEED);  // no page is resident before it is read
    if (mremap(file, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, held) != MAP_FAILED) return true;
  }
  munmap(file, bytes);
  return false;
}
#else  // not Linux: it stays in memory
bool ReservedMemory::map_file(size_t, size_t, int, int64_t) { return false; }
#endif

}  // namespace tgflow
