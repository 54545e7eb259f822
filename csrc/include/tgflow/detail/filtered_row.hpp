// The samplers that look at every entry because only events of some types count. No `std::` here.
#pragma once

#include "tgflow/detail/recent_row.hpp"
#include "tgflow/detail/sampler.hpp"
#include "tgflow/detail/uniform_row.hpp"

namespace tgflow {

/// Calls `each(entry, base_eid)` for the entries numbered [first, seen.count) that count, newest first, until
/// it returns false.
template <typename Each>
TGFLOW_HD inline void for_each_kept(const StoreView& store, const Directory* dir, int64_t first, Visible seen,
                                    const Sampler& sampler, const Each& each) {
  int64_t end = seen.count;
  for (int64_t b = seen.block; end > first; --b) {
    const Block& block = dir->blocks()[b];
    const Entry* entries = store.entries(block);
    const int64_t begin = first > block.start ? first : block.start;
    for (int64_t j = end - block.start; j-- > begin - block.start;) {
      if (!sampler.keeps(store, entries[j], block.base_eid)) continue;
      store.count_reads(block, 1);
      if (!each(entries[j], block.base_eid)) return;
    }
    end = begin;
  }
}

/// Writes row `i`: the newest `out.k` that count.
TGFLOW_HD inline void filtered_recent_row(const StoreView& store, const Directory* dir, Visible seen,
                                          const Sampler& sampler, int64_t i, const NeighborRows& out) {
  int64_t slot = i * out.k;
  const int64_t end = slot + out.k;
  for_each_kept(store, dir, 0, seen, sampler, [&](const Entry& entry, eid_t base_eid) {
    write_slot(out, slot++, entry, base_eid);
    return slot < end;
  });
  out.count[i] = static_cast<int32_t>(slot - i * out.k);
  pad_slots(out, slot, end);
}

/// Writes row `i`: `out.k` of those numbered [first, seen.count) that count, each as likely, in two passes.
TGFLOW_HD inline void filtered_uniform_row(const StoreView& store, const Directory* dir, int64_t first,
                                           Visible seen, const Sampler& sampler, Draws draws, int64_t i,
                                           const NeighborRows& out) {
  int64_t left = 0;
  for_each_kept(store, dir, first, seen, sampler, [&](const Entry&, eid_t) {
    ++left;
    return true;
  });
  const bool all = left <= out.k;
  int64_t slot = i * out.k;
  const int64_t end = slot + (all ? left : out.k);
  out.count[i] = static_cast<int32_t>(end - slot);
  if (!all) uniform_draw(0, left, draws, i, out);
  if (slot < end) {
    for_each_kept(store, dir, first, seen, sampler, [&](const Entry& entry, eid_t base_eid) {
      --left;
      if (all || out.eid[slot] == left) write_slot(out, slot++, entry, base_eid);
      return slot < end;
    });
  }
  pad_slots(out, end, (i + 1) * out.k);
}

}  // namespace tgflow
