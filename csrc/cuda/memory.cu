// Reads, writes and archives versions of a node memory: kernels by how many numbers a lane copies at once.
#include "tgflow/cuda/memory.hpp"

using namespace tgflow;

extern "C" __global__ void __launch_bounds__(256)
    memory_read_by_4(MemoryColumns memory, VersionRing ring, MemoryQueries queries) {
  read_versions<4>(memory, ring, queries);
}
extern "C" __global__ void __launch_bounds__(256)
    memory_read_by_1(MemoryColumns memory, VersionRing ring, MemoryQueries queries) {
  read_versions<1>(memory, ring, queries);
}
extern "C" __global__ void __launch_bounds__(1024)
    memory_archive(MemoryColumns memory, VersionRing ring, MemoryUpdates updates) {
  archive_versions(memory, ring, updates);
}
extern "C" __global__ void __launch_bounds__(256)
    memory_write_by_4(MemoryColumns memory, VersionRing ring, MemoryUpdates updates) {
  write_versions<4>(memory, ring, updates);
}
extern "C" __global__ void __launch_bounds__(256)
    memory_write_by_1(MemoryColumns memory, VersionRing ring, MemoryUpdates updates) {
  write_versions<1>(memory, ring, updates);
}
