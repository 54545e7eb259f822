// The overwritten versions of a node memory, as tgflow/nn/history.py links them. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

constexpr int64_t kNoVersion = -1;

/// A ring of rows, numbered as they came; tgflow/cuda/history.py has it field by field.
struct VersionRing {
  const int64_t* head;   ///< The number of each node's latest version, or `kNoVersion`.
  int64_t num_nodes;     ///< Of `head`.
  const int64_t* link;   ///< [slots, 3]: the node's version before it, one far before that, a depth.
  const int64_t* clock;  ///< [slots, clock_width]: the last column is the log position it held from.
  int64_t clock_width;
  const int64_t* next;  ///< The number of the next version to come.
  int64_t capacity;     ///< Versions that are kept; number n is in slot n mod capacity.
};

/// The slot of the latest kept version of `node` at or before `position`; -1 if there is none.
TGFLOW_HD inline int64_t version_slot(const VersionRing& ring, int64_t node, int64_t position) {
  if (node < 0 || node >= ring.num_nodes) return kNoVersion;
  const int64_t oldest = *ring.next > ring.capacity ? *ring.next - ring.capacity : 0;
  int64_t number = ring.head[node];
  while (number >= oldest) {
    const int64_t slot = number % ring.capacity;
    if (ring.clock[slot * ring.clock_width + ring.clock_width - 1] <= position) return slot;
    const int64_t before = ring.link[3 * slot], far = ring.link[3 * slot + 1];
    const bool is_later =
        far >= oldest && far < number &&
        ring.clock[far % ring.capacity * ring.clock_width + ring.clock_width - 1] > position;
    const int64_t step = is_later ? far : before;
    if (step >= number) return kNoVersion;  // no list goes forward
    number = step;
  }
  return kNoVersion;
}

}  // namespace tgflow
