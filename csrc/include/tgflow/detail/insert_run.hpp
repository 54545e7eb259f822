// Appending to one node: the demand of a run of new entries, and linking it in. No `std::` here.
//
// A batch is inserted in phases, each over all runs: plan, reserve memory for all plans, and only then link,
// write and publish. So a batch that does not fit changes nothing, and each phase can be one GPU launch.
#pragma once

#include "tgflow/detail/store_view.hpp"

namespace tgflow {

constexpr int64_t kOneBlock = 36;    ///< Up to this size a node has one block, which grows by copying.
constexpr int64_t kMinChained = 17;  ///< Least capacity of later blocks.
constexpr int64_t kMaxChained = 16384;
constexpr int64_t kGrowth = 8;  ///< A new block has room for this fraction of the node's entries.
constexpr int64_t kMaxOffset = 0xffffffff;

/// The demand of one node's new entries.
struct RunPlan {
  Directory* dir;       ///< The node's present one, or null.
  uint32_t size;        ///< New entries.
  uint32_t in_tail;     ///< Number of them that fit in the last block.
  uint32_t num_blocks;  ///< New blocks for the rest.
  uint32_t capacity;    ///< Of the last new block; the others have the largest.
  uint32_t max_blocks;  ///< Of a new directory; 0 if the old one has room.
  uint32_t regrows;     ///< Whether the new block replaces the only one and starts with its entries.
};

/// The smallest capacity of a growing block for `num_entries`: steps of about a third keep the slack small.
TGFLOW_HD inline int64_t small_capacity(int64_t num_entries) {
  int64_t capacity = 1;
  while (capacity < num_entries) capacity += capacity < 6 ? 1 : capacity / 3;
  return capacity;
}

/// The capacity of a chained block: one that growing blocks also have, so that their memory is reused,
/// or `num_entries` rounded up to 4 significant bits.
TGFLOW_HD inline int64_t chained_capacity(int64_t num_entries) {
  if (num_entries <= kOneBlock) return small_capacity(num_entries);
  int64_t step = 1;
  while (num_entries > 16 * step) step *= 2;
  return (num_entries + step - 1) / step * step;
}

/// The capacity of a last block for `num_entries`, where the node then has `total` entries.
TGFLOW_HD inline int64_t tail_capacity(int64_t num_entries, int64_t total, int64_t max_capacity) {
  if (total <= kOneBlock) {
    const int64_t capacity = small_capacity(num_entries);
    return capacity < max_capacity ? capacity : max_capacity;
  }
  int64_t wanted = total / kGrowth > kMinChained ? total / kGrowth : kMinChained;
  wanted = chained_capacity(wanted > num_entries ? wanted : num_entries);
  return wanted < max_capacity ? wanted : max_capacity;
}

/// The fewest blocks that a directory with `num_blocks` has room for: with its header a power of two.
TGFLOW_HD inline uint32_t directory_room(int64_t num_blocks) {
  int64_t size = 2;
  while (size - 1 < num_blocks) size *= 2;
  return static_cast<uint32_t>(size - 1);
}

TGFLOW_HD inline int64_t directory_bytes(int64_t max_blocks) {
  return static_cast<int64_t>(sizeof(Directory)) + max_blocks * static_cast<int64_t>(sizeof(Block));
}

/// Adds the blocks for `rest` entries after the `num_linked` existing ones.
TGFLOW_HD inline void plan_blocks(RunPlan& plan, int64_t rest, int64_t num_linked, int64_t total,
                                  int64_t max_capacity) {
  const int64_t num_new = (rest + max_capacity - 1) / max_capacity;
  const int64_t num_blocks = num_linked + num_new;
  plan.num_blocks = static_cast<uint32_t>(num_new);
  plan.capacity =
      static_cast<uint32_t>(tail_capacity(rest - (num_new - 1) * max_capacity, total, max_capacity));
  if (plan.dir == nullptr || num_blocks > plan.dir->max_blocks) plan.max_blocks = directory_room(num_blocks);
}

/// Plans for `size` new entries, the events `eids(0) < ... < eids(size - 1)`, of the node with `dir` (may be
/// null). Blocks of the host tier are never written again.
template <typename Eids>
TGFLOW_HD inline RunPlan plan_run(const StoreView& store, Directory* dir, int64_t size, int64_t max_capacity,
                                  const Eids& eids) {
  RunPlan plan{dir, static_cast<uint32_t>(size), 0, 0, 0, 0, 0};
  if (dir == nullptr || dir->num_blocks == 0) {
    plan_blocks(plan, size, 0, size, max_capacity);
    return plan;
  }
  const Block& tail = dir->blocks()[dir->num_blocks - 1];
  const int64_t limit = tail.base_eid + kMaxOffset;
  const int64_t all = dir->total + size;
  int64_t in_tail = 0;
  if (store.tier(tail.place) == 0) {
    const int64_t room = tail.start + capacity_of(tail.place) - dir->total;
    in_tail = size < room ? size : room;
    while (in_tail > 0 && eids(in_tail - 1) > limit) --in_tail;
  }
  if (in_tail < size && dir->num_blocks == 1 && all <= kOneBlock && all <= max_capacity &&
      eids(size - 1) <= limit) {
    plan.regrows = 1;
    plan.num_blocks = 1;
    plan.capacity = static_cast<uint32_t>(tail_capacity(all, all, max_capacity));
    return plan;
  }
  plan.in_tail = static_cast<uint32_t>(in_tail);
  if (in_tail < size) plan_blocks(plan, size - in_tail, dir->num_blocks, all, max_capacity);
  return plan;
}

/// The capacity of new block `b` of a plan.
TGFLOW_HD inline int64_t capacity_of_new(const RunPlan& plan, uint32_t b, int64_t max_capacity) {
  return b + 1 == plan.num_blocks ? plan.capacity : max_capacity;
}

/// Makes room for the new entries: returns the directory that `publish_run` will publish, `room` if the plan
/// needs a new one. The only visible effect on readers is that the node's only block has moved.
/// `places`: of the new blocks; `first(j)`: the event and time of new entry `j`, as a `Mark`.
struct Mark {
  eid_t eid;
  tick_t t;
};
template <typename Marks>
TGFLOW_HD inline Directory* link_run(const StoreView& store, const RunPlan& plan, Directory* room,
                                     const place_t* places, int64_t max_capacity, const Marks& first) {
  const Directory* old = plan.dir;
  const int64_t total = old == nullptr ? 0 : old->total;
  const uint32_t num_linked = old == nullptr ? 0 : old->num_blocks;
  Directory* dir = plan.dir;
  if (plan.regrows != 0) {
    Block& block = dir->blocks()[0];
    const Entry* from = store.entries(block);
    Entry* to = store.entries_at(places[0]);
    for (int64_t i = 0; i < total; ++i) to[i] = from[i];
    store_release(&block.place, places[0]);
    return dir;
  }
  if (plan.max_blocks != 0) {
    dir = room;
    *dir = {total, num_linked, plan.max_blocks, old == nullptr ? nullptr : old->version, 0};
    for (uint32_t b = 0; b < num_linked; ++b) dir->blocks()[b] = old->blocks()[b];
  }
  int64_t j = plan.in_tail;
  for (uint32_t b = 0; b < plan.num_blocks; ++b, j += max_capacity) {
    const Mark mark = first(j);
    dir->blocks()[num_linked + b] = {places[b], mark.eid, mark.t, total + j};
  }
  return dir;
}

/// Destination of a plan's new entries: `size` of them from number `begin` on, at `entries`.
struct Segment {
  place_t place;
  Entry* entries;
  eid_t base_eid;
  int64_t begin;
  int64_t size;
};

/// Segment `s` of a linked plan: 0 is in the old tail (and may be empty), the others in the new blocks.
TGFLOW_HD inline Segment segment_of(const StoreView& store, const RunPlan& plan, const Directory* dir,
                                    uint32_t s, int64_t max_capacity) {
  if (s == 0) {
    if (plan.in_tail == 0 && plan.regrows == 0) return {0, nullptr, 0, 0, 0};
    const uint32_t num_linked = plan.dir->num_blocks;
    const Block& tail = dir->blocks()[num_linked - 1];
    return {tail.place, store.entries_at(tail.place) + (plan.dir->total - tail.start), tail.base_eid, 0,
            plan.regrows != 0 ? plan.size : plan.in_tail};
  }
  const uint32_t num_linked = plan.dir == nullptr ? 0 : plan.dir->num_blocks;
  const Block& block = dir->blocks()[num_linked + s - 1];
  const int64_t begin = plan.in_tail + (s - 1) * max_capacity;
  const int64_t rest = plan.size - begin;
  return {block.place, store.entries_at(block.place), block.base_eid, begin,
          rest < max_capacity ? rest : max_capacity};
}

/// Number of segments of a plan, an empty first one included.
TGFLOW_HD inline uint32_t num_segments(const RunPlan& plan) {
  return plan.regrows != 0 ? 1 : 1 + plan.num_blocks;
}

/// Publishes the entries of a linked plan to readers with later cut-offs.
TGFLOW_HD inline void publish_run(const RunPlan& plan, Directory* dir, Directory** head) {
  const int64_t total = (plan.dir == nullptr ? 0 : plan.dir->total) + plan.size;
  const uint32_t num_linked = plan.dir == nullptr ? 0 : plan.dir->num_blocks;
  if (plan.regrows == 0 && plan.num_blocks != 0)
    store_release(&dir->num_blocks, num_linked + plan.num_blocks);
  store_release(&dir->total, total);
  if (dir != plan.dir) store_release(head, dir);
}

}  // namespace tgflow
