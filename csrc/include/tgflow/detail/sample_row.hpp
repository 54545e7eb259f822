// Any sampler, for one query: what the batched paths answer too. No `std::` here.
#pragma once

#include "tgflow/detail/decayed_row.hpp"
#include "tgflow/detail/filtered_row.hpp"

namespace tgflow {

/// Where the window of a query at time `t` begins.
TGFLOW_HD inline tick_t window_start(tick_t t, int64_t width) {
  return t < kEarliest + width ? kEarliest : t - width;
}

/// Takes the newest of what the query sees.
TGFLOW_HD inline void answer_recent(const StoreView& store, const Directory* dir, const Visible& seen,
                                    const Sampler& sampler, int64_t i, const NeighborRows& out) {
  if (sampler.types != nullptr) return filtered_recent_row(store, dir, seen, sampler, i, out);
  recent_row(store, dir, seen, i, out);
}

/// Draws from what the query sees, each as likely, but not from the oldest `first`.
TGFLOW_HD inline void answer_uniform(const StoreView& store, const Directory* dir, int64_t first,
                                     const Visible& seen, const Sampler& sampler, Draws draws, int64_t i,
                                     const NeighborRows& out) {
  if (sampler.types != nullptr) return filtered_uniform_row(store, dir, first, seen, sampler, draws, i, out);
  if (seen.count - first <= out.k) return newest_row(store, dir, seen, seen.count - first, i, out);
  uniform_draw(first, seen.count, draws, i, out);
  locate_numbered(store, dir, seen.block, out.k, i, out);
  read_numbered(store, dir, out.k, i, out);
}

/// How many of what the query sees are before its window.
TGFLOW_HD inline int64_t before_window(const StoreView& store, const Directory* dir, const Visible& seen,
                                       tick_t t, int64_t width) {
  const int64_t first = find_visible(store, dir, window_start(t, width), kEveryEvent).count;
  return first < seen.count ? first : seen.count;
}

/// Draws from what the query sees, younger ones likelier.
TGFLOW_HD inline void answer_decayed(const StoreView& store, const Directory* dir, const Visible& seen,
                                     const Sampler& sampler, int64_t item, int64_t i,
                                     const NeighborRows& out) {
  if (sampler.types == nullptr && seen.count <= out.k) return recent_row(store, dir, seen, i, out);
  decayed_draw(store, dir, seen, sampler, item, i, out);
  locate_numbered(store, dir, seen.block, out.count[i], i, out);
  read_numbered(store, dir, out.count[i], i, out);
}

/// Answers query `i`.
TGFLOW_HD inline void sample_row(const StoreView& store, const Queries& queries, const Sampler& sampler,
                                 int64_t i, const NeighborRows& out) {
  const Directory* dir = store.directory(queries.node[i], queries.limit(i));
  const Visible seen = find_visible(store, dir, queries.t[i], queries.limit(i));
  int64_t first = 0;
  switch (sampler.strategy) {
    case Strategy::kRecent:
      return answer_recent(store, dir, seen, sampler, i, out);
    case Strategy::kDecayed:
      return answer_decayed(store, dir, seen, sampler, queries.row_of(i), i, out);
    case Strategy::kUniform:
      break;
    case Strategy::kWindow:
      first = before_window(store, dir, seen, queries.t[i], sampler.span);
      break;
  }
  answer_uniform(store, dir, first, seen, sampler, Draws(sampler.key, queries.row_of(i)), i, out);
}

}  // namespace tgflow
