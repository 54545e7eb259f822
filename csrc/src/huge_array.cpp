#include "tgflow/huge_array.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tgflow {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kLine = 64;

}  // namespace

void* allocate_huge(std::size_t bytes) {
  const std::size_t align = bytes >= kHugePage ? kHugePage : kLine;
  bytes = (std::max<std::size_t>(bytes, 1) + align - 1) / align * align;
  void* memory = std::aligned_alloc(align, bytes);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (align == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

void release_huge(void* memory) { std::free(memory); }

}  // namespace tgflow
