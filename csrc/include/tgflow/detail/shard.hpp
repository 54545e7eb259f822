// Which nodes' neighbors a store holds: all, or those of a rank among others. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

constexpr int64_t kParts = 64;  ///< Node v is in part v mod kParts; ranks own whole parts.
constexpr int64_t kNotHeld = -1;

/// As `Shard` of tgflow/peers.py, whose local ids these are. All zeros: every node is held, and is its own
/// local id.
struct Shard {
  int64_t first_part = 0;
  int64_t num_other_parts = 0;  ///< That others hold.

  TGFLOW_HD int64_t num_parts() const { return kParts - num_other_parts; }
  /// The place of `v` among the nodes that are held; `kNotHeld` for others and negative ones.
  TGFLOW_HD int64_t local(node_t v) const {
    const auto id = static_cast<uint64_t>(v);  // whose remainder is cheap
    const int64_t part = static_cast<int64_t>(id % kParts) - first_part;
    if (v < 0 || part < 0 || part >= num_parts()) return kNotHeld;
    return static_cast<int64_t>(id / kParts) * num_parts() + part;
  }
};

}  // namespace tgflow
