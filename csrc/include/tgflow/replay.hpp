// Recency-weighted draws of past events, without replacement.
#pragma once

#include <cstdint>

#include "tgflow/types.hpp"

namespace tgflow {

/// Which past events may be drawn: positions [begin, end), weighted by 2^(-age / half_life) where the age of
/// position `end - 1` is 0. An infinite half-life draws uniformly.
struct ReplayWindow {
  eid_t begin;
  eid_t end;
  double half_life;
};

/// Writes `num` distinct positions of the window (all of it if it has fewer) to `out`, ascending; returns how
/// many. Distributed as sequential draws in proportion to the remaining weights; keyed by `key`.
int64_t draw_replay(const ReplayWindow& window, uint64_t key, int64_t num, eid_t* out);

}  // namespace tgflow
