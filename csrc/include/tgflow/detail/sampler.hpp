// What a call of the samplers asks for. No `std::` here.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

enum class Strategy : int32_t {
  kRecent,   ///< The newest.
  kUniform,  ///< Any, each as likely.
  kWindow,   ///< Any, each as likely, of those in [t - span, t).
  kDecayed,  ///< Any, each half as likely as one that is `span` younger.
};

struct Sampler {
  Strategy strategy = Strategy::kRecent;
  uint64_t key = 0;                 ///< Of the draws; `kRecent` has none.
  int64_t span = 1;                 ///< In ticks, at least 1.
  const uint64_t* types = nullptr;  ///< 2^16 bits: whether events of a type count. Null: all do.

  /// Whether `entry`, of a block with this base, counts. Only where `types` is given.
  TGFLOW_HD bool keeps(const StoreView& store, const Entry& entry, eid_t base_eid) const {
    const uint32_t type = store.types[base_eid + entry.eid_offset];
    return (types[type >> 6] >> (type & 63) & 1) != 0;
  }
};

}  // namespace tgflow
