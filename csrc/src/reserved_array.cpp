#include "tgflow/reserved_array.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tgflow {
namespace {

constexpr size_t kStep = size_t{1} << 20;           // committing is a system call
constexpr size_t kHugePagesFrom = size_t{8} << 20;  // below, they would cost more memory than they save time

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

ReservedMemory::ReservedMemory(size_t bytes) : size_(round_up(bytes, kStep)) {
  for (; size_ >= kStep; size_ = round_up(size_ / 2, kStep)) {
    data_ = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ != MAP_FAILED) return;
    if (size_ == kStep) break;
  }
  throw std::bad_alloc();
}

ReservedMemory::~ReservedMemory() { munmap(data_, size_); }

void ReservedMemory::commit(size_t bytes) {
  if (bytes <= committed_) return;
  const size_t target = std::min(size_, round_up(std::max(bytes, 2 * committed_), kStep));
  if (mprotect(data_, target, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (target >= kHugePagesFrom) madvise(data_, target, MADV_HUGEPAGE);  // a hint: failing is fine
#endif
  committed_ = target;
}

}  // namespace tgflow
