// The query of a frontier's row, on the host and on the device. No `std::` here.
#pragma once

#include "tgflow/detail/mix.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// A query, with 0 for columns that are not compared.
struct FrontierQuery {
  node_t node;
  tick_t t;
  int64_t position;
};

TGFLOW_HD inline bool operator==(const FrontierQuery& a, const FrontierQuery& b) {
  return a.node == b.node && a.t == b.t && a.position == b.position;
}

TGFLOW_HD inline uint64_t hash_of(const FrontierQuery& query) {
  const uint64_t seed =
      mix64(static_cast<uint64_t>(query.t) + 0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(query.position));
  return mix64(seed ^ static_cast<uint64_t>(query.node));
}

}  // namespace tgflow
