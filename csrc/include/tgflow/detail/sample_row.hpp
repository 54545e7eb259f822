// Any sampler, for one query: what the batched paths answer too. No `std::` here.
#pragma once

#include "tgflow/detail/decayed_row.hpp"
#include "tgflow/detail/filtered_row.hpp"

namespace tgflow {

/// Where the window of a query at time `t` begins.
TGFLOW_HD inline tick_t window_start(tick_t t, int64_t width) {
  return t < kEarliest + width ? kEarliest : t - width;
}

/// Answers query `i`.
TGFLOW_HD inline void sample_row(const StoreView& store, const Queries& queries, const Sampler& sampler,
                                 int64_t i, const NeighborRows& out) {
  const Directory* dir = store.directory(queries.node[i], queries.limit(i));
  const Visible seen = find_visible(store, dir, queries.t[i], queries.limit(i));
  const bool filtered = sampler.types != nullptr;
  if (sampler.strategy == Strategy::kRecent) {
    if (filtered) return filtered_recent_row(store, dir, seen, sampler, i, out);
    return recent_row(store, dir, seen, i, out);
  }
  if (sampler.strategy == Strategy::kDecayed) {
    if (!filtered && seen.count <= out.k) return recent_row(store, dir, seen, i, out);
    decayed_draw(store, dir, seen, sampler, i, out);
    locate_numbered(store, dir, seen.block, out.count[i], i, out);
    return read_numbered(store, dir, out.count[i], i, out);
  }
  int64_t first = 0;
  if (sampler.strategy == Strategy::kWindow) {
    first = find_visible(store, dir, window_start(queries.t[i], sampler.span), kEveryEvent).count;
    if (first > seen.count) first = seen.count;
  }
  if (filtered) return filtered_uniform_row(store, dir, first, seen, sampler, i, out);
  if (seen.count - first <= out.k) return newest_row(store, dir, seen, seen.count - first, i, out);
  uniform_draw(first, seen.count, sampler.key, i, out);
  locate_numbered(store, dir, seen.block, out.k, i, out);
  read_numbered(store, dir, out.k, i, out);
}

}  // namespace tgflow
