#include "tgflow/tier_memory.hpp"

#include <sys/mman.h>

#include <cstdlib>

namespace tgflow {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void* HostMemory::allocate(int64_t bytes) noexcept {
  const size_t size = static_cast<size_t>(bytes);
  void* chunk = std::aligned_alloc(size % kHugePage == 0 ? kHugePage : kCacheLine, size);
#ifdef MADV_HUGEPAGE
  if (chunk != nullptr && size >= kHugePage) madvise(chunk, size, MADV_HUGEPAGE);  // a hint: failing is fine
#endif
  return chunk;
}

void HostMemory::free(void* chunk, int64_t) noexcept { std::free(chunk); }

}  // namespace tgflow
