// The overwritten versions of a node memory (tgflow/nn/history.py): a ring of rows, linked by node.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

constexpr int64_t kNoVersion = -1;
constexpr int64_t kClockWidth = 4;  ///< As in tgflow/nn/memory_rows.py.
constexpr int64_t kLastUpdate = 0, kMailT = 1, kHasMail = 2;
constexpr int64_t kPosition = 3;  ///< Column of a clock with the log position from which it is valid.
constexpr int64_t kLinkWidth = 3;
constexpr int64_t kOriginWidth = 2;  ///< A version's node, and `VersionRing::since_of` it.

/// Links of a version: to the previous version of its node, and to one far before that.
struct VersionLink {
  int64_t previous, far, depth;
};

/// A ring of rows, numbered in order; tgflow/cuda/memory.py has the same fields.
struct VersionRing {
  float* row;          ///< [slots, width of the memory].
  int64_t* clock;      ///< [slots, kClockWidth].
  int64_t* link;       ///< [slots, kLinkWidth], of `VersionLink`.
  int64_t* origin;     ///< [slots, kOriginWidth].
  int64_t* head;       ///< By node: the number of its latest version, or `kNoVersion`.
  int64_t* counts;     ///< Number of the next version, and log position of the last write.
  int64_t capacity;    ///< Versions kept, 0 without a ring; number n is in slot n mod capacity.
  int64_t num_events;  ///< Versions are kept while their overwriting write began within this window.

  TGFLOW_HD int64_t next() const { return counts[0]; }
  TGFLOW_HD int64_t position() const { return counts[1]; }
  TGFLOW_HD int64_t oldest() const { return next() > capacity ? next() - capacity : 0; }
  TGFLOW_HD int64_t slot_of(int64_t number) const { return number % capacity; }
  TGFLOW_HD bool is_held(int64_t number) const { return number >= oldest(); }
  /// The position of the first event of the write that overwrote the version in `slot`.
  TGFLOW_HD int64_t since_of(int64_t slot) const { return origin[slot * kOriginWidth + 1]; }
  TGFLOW_HD int64_t position_of(int64_t number) const {
    return clock[slot_of(number) * kClockWidth + kPosition];
  }
  /// The link of a version; for a missing or expired one the empty link, at depth 0.
  TGFLOW_HD VersionLink link_of(int64_t number) const {
    if (!is_held(number)) return {kNoVersion, kNoVersion, 0};
    const int64_t* at = link + slot_of(number) * kLinkWidth;
    return {at[0], at[1], at[2]};
  }
};

/// The slot of the latest kept version of `node` at or before `position`; -1 if there is none.
TGFLOW_HD inline int64_t version_slot(const VersionRing& ring, int64_t node, int64_t position) {
  if (ring.capacity == 0) return kNoVersion;
  int64_t number = ring.head[node];
  while (ring.is_held(number)) {
    if (ring.position_of(number) <= position) {
      const int64_t slot = ring.slot_of(number);
      return ring.since_of(slot) >= ring.position() - ring.num_events ? slot : kNoVersion;
    }
    const VersionLink link = ring.link_of(number);
    const bool skips = ring.is_held(link.far) && link.far < number && ring.position_of(link.far) > position;
    const int64_t step = skips ? link.far : link.previous;
    if (step >= number) return kNoVersion;  // links never point forward
    number = step;
  }
  return kNoVersion;
}

/// The link of a version after version `previous` of its node: a skew-binary list of Myers (1983).
TGFLOW_HD inline VersionLink link_after(const VersionRing& ring, int64_t previous) {
  const VersionLink last = ring.link_of(previous), jump = ring.link_of(last.far);
  const bool is_balanced =
      jump.far != kNoVersion && last.depth - jump.depth == jump.depth - ring.link_of(jump.far).depth;
  return {previous, is_balanced ? jump.far : previous, last.depth + 1};
}

}  // namespace tgflow
