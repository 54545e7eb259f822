// Finds the versions of a node memory that queries of the past read: a walk along each node's list.
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/version_ring.hpp"

using namespace tgflow;

/// Which versions are asked for; tgflow/cuda/history.py has it field by field.
struct VersionQueries {
  const int64_t* node;
  const int64_t* position;
  int64_t size;
  int64_t* slot;  ///< [size]: where each version is in the ring, or -1.
};

extern "C" __global__ void __launch_bounds__(256) find_versions(VersionRing ring, VersionQueries queries) {
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = thread_index(); i < queries.size; i += step) {
    queries.slot[i] = version_slot(ring, queries.node[i], queries.position[i]);
  }
}
