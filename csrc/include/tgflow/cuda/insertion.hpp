// A batch being inserted: data shared by the kernels of insert*.cu. Device code only.
#pragma once

#include "tgflow/cuda/snapshot.hpp"
#include "tgflow/detail/insert_run.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

constexpr int kPieceClasses = 160;
constexpr int kClasses = kPieceClasses + 32;  ///< Then one per power-of-two size of directories.
constexpr int kNoClass = 255;                 ///< Marks a missing item.

/// The class of pieces with a capacity from `tail_capacity`: at most 64, or of 4 significant bits.
TGFLOW_HD inline int piece_class(int64_t capacity) {
  int exponent = 0;
  int64_t digits = capacity;
  for (; digits > 64 || (exponent > 0 && digits > 16); digits >>= 1) ++exponent;
  return exponent == 0 ? static_cast<int>(digits) : 56 + 8 * exponent + static_cast<int>(digits - 8);
}

/// The class of directories with room for `max_blocks`, a power of two less one.
TGFLOW_HD inline int room_class(uint32_t max_blocks) {
  int exponent = 0;
  for (uint64_t size = uint64_t{max_blocks} + 1; size > 1; size >>= 1) ++exponent;
  return kPieceClasses + exponent;
}

/// Free items: class `c` has the `count[c]` items from `items[begin[c]]` on.
struct FreeItems {
  const uint64_t* items;  ///< Places of pieces, addresses of directories.
  const int64_t* begin;
  int64_t* count;

  /// Whether a class has a `rank`th item, from 0.
  TGFLOW_HD bool has(int size_class, int64_t rank) const { return rank < count[size_class]; }
  /// The last item first, so that the rest stays in front.
  TGFLOW_HD uint64_t item(int size_class, int64_t rank) const {
    return items[begin[size_class] + count[size_class] - 1 - rank];
  }
};

/// The node of an absent pair: a self-loop's second, or one of a node that is not held.
constexpr int32_t kAbsent = 0x7fffffff;
constexpr int kDemands = 3;

/// Fresh memory: pieces are cut off a line that runs through the chunks. A piece that starts in the last
/// `max_capacity` entries of a chunk belongs to the next, so none straddles two.
struct Fresh {
  int64_t line;          ///< Start of this batch on the line.
  int64_t stride;        ///< Distance between chunks on the line.
  Directory* rooms;      ///< Start of its directories.
  int64_t max_capacity;  ///< Most entries of a block.

  TGFLOW_HD place_t place(int64_t offset, int64_t capacity) const {
    return place_of((line + offset) / stride, (line + offset) % stride, capacity);
  }
  TGFLOW_HD Directory* room(int64_t offset) const { return rooms + offset; }
};

/// Position in fresh memory: the host does not wait for the totals of earlier batches.
struct FreshCursor {
  int64_t line;
  Directory* rooms;
  unsigned long long finished;  ///< Thread blocks of `insert_small_commit` that have finished.
};

/// Memory that a batch takes, read later by the host.
struct Totals {
  int64_t runs;
  int64_t blocks;
  int64_t entries;     ///< Fresh entries.
  int64_t rooms;       ///< Units of fresh directories.
  int64_t given_up;    ///< Old blocks and directories.
  int64_t max_blocks;  ///< Largest number of blocks of a growing node.
};

/// Ranks of a run among all runs that need the same kind of memory.
struct Ranks {
  int32_t full;  ///< Of its first full-size block.
  int32_t last;  ///< Of its last block.
  int32_t room;  ///< Of its directory.
};

/// Counters behind those of the size classes.
constexpr int kGivenUp = kClasses, kMaxBlocks = kClasses + 1, kCounters = kClasses + 2;

/// A run is a node's pairs; arrays have room for one run per pair.
struct Insertion {
  StoreView store;    ///< As published, except chunks added since.
  Directory** heads;  ///< With room for all held nodes, at the time of publishing.
  const node_t* src;
  const node_t* dst;
  const tick_t* t;
  eid_t first_eid;
  int64_t num_pairs;
  int64_t sides;   ///< Pairs per event: 2, or 1 if only sources have neighbors.
  int32_t* node;   ///< Per pair, by local id, sorted.
  int64_t* pair;   ///< Per sorted pair: 2 * row, + 1 for the destination's.
  int32_t* run;    ///< Per pair: first whether a run starts, then the prefix sum.
  int64_t* begin;  ///< Per run, and the end.
  RunPlan* plans;
  Ranks* ranks;
  int64_t* demand;  ///< [kDemands, num_pairs]: blocks, fresh entries and rooms; then prefix sums.
  int32_t* needed;  ///< Counters: per size class, then others.
  FreeItems free;
  Fresh fresh;           ///< Its start is in the cursor.
  place_t* places;       ///< Places of all new blocks.
  Directory** dirs;      ///< Per run.
  uint64_t* given_up;    ///< [2, pairs]: replaced blocks and directories, 0 for none.
  uint8_t* given_class;  ///< Their size classes.
  FreshCursor* cursor;
  Directory* slab;  ///< Start of directories instead of the cursor, or null.
  Totals* totals;   ///< In host memory.
  Snapshot* snapshot;
  Snapshot next;  ///< The next snapshot.

  TGFLOW_HD int64_t num_runs() const { return num_pairs == 0 ? 0 : run[num_pairs - 1]; }
  TGFLOW_HD int64_t row(int64_t p) const { return pair[p] >> 1; }
  TGFLOW_HD Mark mark(int64_t p) const { return {first_eid + row(p), t[row(p)]}; }
  TGFLOW_HD node_t neighbor(int64_t p) const { return (pair[p] & 1) != 0 ? src[row(p)] : dst[row(p)]; }
  /// The demand of the runs before `r`.
  TGFLOW_HD int64_t before(int kind, int64_t r) const {
    return r == 0 ? 0 : demand[kind * num_pairs + r - 1];
  }
  /// Whether memory of rank `rank` is fresh, as its class has too few free items.
  TGFLOW_HD bool is_fresh(int size_class, int64_t rank) const { return !free.has(size_class, rank); }
  /// The fresh memory from the start of this batch.
  TGFLOW_HD Fresh fresh_here() const {
    return {cursor->line, fresh.stride, slab != nullptr ? slab : cursor->rooms, fresh.max_capacity};
  }
};

constexpr int kBlocks = 0, kEntries = 1, kRooms = 2;  ///< The demands.

/// The plan of run `r`, empty beyond the last.
__device__ inline RunPlan plan_of(const Insertion& in, int64_t r) {
  if (r >= in.num_runs()) return {};
  const int64_t begin = in.begin[r];
  const auto eids = [&](int64_t j) { return in.first_eid + in.row(begin + j); };
  auto* dir = const_cast<Directory*>(in.store.latest_local(in.node[begin]));
  return plan_run(in.store, dir, in.begin[r + 1] - begin, in.fresh.max_capacity, eids);
}

/// Number of full-size blocks that a plan requests.
__device__ inline int num_full_blocks(const RunPlan& plan) {
  return plan.num_blocks == 0 ? 0 : static_cast<int>(plan.num_blocks) - 1;
}

/// Adds a plan's demand to `counted`, and returns its ranks there.
__device__ inline Ranks count_needs(const Insertion& in, const RunPlan& plan, int* counted) {
  Ranks ranks{0, 0, 0};
  const int num_full = num_full_blocks(plan);
  if (num_full != 0) ranks.full = atomicAdd(&counted[piece_class(in.fresh.max_capacity)], num_full);
  if (plan.num_blocks != 0) ranks.last = atomicAdd(&counted[piece_class(plan.capacity)], 1);
  if (plan.max_blocks != 0) ranks.room = atomicAdd(&counted[room_class(plan.max_blocks)], 1);
  const int given_up = (plan.regrows != 0) + (plan.max_blocks != 0 && plan.dir != nullptr);
  if (given_up != 0) atomicAdd(&counted[kGivenUp], given_up);
  if (plan.num_blocks != 0) {
    const int linked = plan.dir == nullptr ? 0 : static_cast<int>(plan.dir->num_blocks);
    atomicMax(&counted[kMaxBlocks], linked + static_cast<int>(plan.num_blocks));
  }
  return ranks;
}

/// Demand of a planned run.
struct Demand {
  int64_t blocks, entries, rooms;
};
__device__ inline Demand demand_of(const Insertion& in, const RunPlan& plan, const Ranks& ranks) {
  const int full = piece_class(in.fresh.max_capacity);
  int64_t entries = 0;
  for (int b = 0; b < num_full_blocks(plan); ++b) {
    if (in.is_fresh(full, ranks.full + b)) entries += in.fresh.max_capacity;
  }
  if (plan.num_blocks != 0 && in.is_fresh(piece_class(plan.capacity), ranks.last)) entries += plan.capacity;
  const bool fresh_room = plan.max_blocks != 0 && in.is_fresh(room_class(plan.max_blocks), ranks.room);
  return {plan.num_blocks, entries, fresh_room ? int64_t{plan.max_blocks} + 1 : 0};
}

/// Writes the totals of the batch for the host.
__device__ inline void note_totals(const Insertion& in, int64_t runs, const Demand& sums) {
  *in.totals = {runs, sums.blocks, sums.entries, sums.rooms, in.needed[kGivenUp], in.needed[kMaxBlocks]};
}

/// Assigns places to the new blocks of run `r`.
__device__ inline place_t* place_blocks(const Insertion& in, const RunPlan& plan, int64_t r) {
  const Fresh fresh = in.fresh_here();
  place_t* places = in.places + in.before(kBlocks, r);
  int64_t offset = in.before(kEntries, r);
  const Ranks ranks = in.ranks[r];
  for (uint32_t b = 0; b < plan.num_blocks; ++b) {
    const int64_t capacity = capacity_of_new(plan, b, fresh.max_capacity);
    const int64_t rank = b + 1 == plan.num_blocks ? ranks.last : ranks.full + static_cast<int64_t>(b);
    const int size_class = piece_class(capacity);
    const bool is_fresh = in.is_fresh(size_class, rank);
    places[b] = is_fresh ? fresh.place(offset, capacity) : in.free.item(size_class, rank);
    if (is_fresh) offset += capacity;
  }
  return places;
}

__device__ inline Directory* room_of(const Insertion& in, const RunPlan& plan, int64_t r) {
  if (plan.max_blocks == 0) return nullptr;
  const int size_class = room_class(plan.max_blocks);
  const int64_t rank = in.ranks[r].room;
  if (in.is_fresh(size_class, rank)) return in.fresh_here().room(in.before(kRooms, r));
  return reinterpret_cast<Directory*>(in.free.item(size_class, rank));
}

/// Records memory replaced by run `r`; nothing if there is no such run.
__device__ inline void note_given_up(const Insertion& in, const RunPlan& plan, int64_t r) {
  uint64_t block = 0, directory = 0;
  if (plan.regrows != 0) {
    block = plan.dir->blocks()[0].place;
    if (plan.dir->version != nullptr && holds(plan.dir->version->older, block))
      block = 0;  // still being read
  }
  if (plan.max_blocks != 0 && plan.dir != nullptr) directory = reinterpret_cast<uint64_t>(plan.dir);
  in.given_up[r] = block;
  in.given_up[in.num_pairs + r] = directory;
  in.given_class[r] = static_cast<uint8_t>(block == 0 ? kNoClass : piece_class(capacity_of(block)));
  in.given_class[in.num_pairs + r] =
      static_cast<uint8_t>(directory == 0 ? kNoClass : room_class(plan.dir->max_blocks));
}

/// Writes the entry of pair `p`, which is number `j` of its run.
__device__ inline void write_entry(const Insertion& in, const RunPlan& plan, const Directory* dir, int64_t p,
                                   int64_t j) {
  const bool in_tail = plan.regrows != 0 || j < plan.in_tail;
  const auto s = static_cast<uint32_t>(in_tail ? 0 : 1 + (j - plan.in_tail) / in.fresh.max_capacity);
  const Segment segment = segment_of(in.store, plan, dir, s, in.fresh.max_capacity);
  const Mark mark = in.mark(p);
  segment.entries[j - segment.begin] = {mark.t, static_cast<uint32_t>(in.neighbor(p)),
                                        static_cast<uint32_t>(mark.eid - segment.base_eid)};
}

/// By all threads of one block, when all runs are published: subtracts used memory and advances the
/// snapshot.
__device__ inline void finish_insertion(const Insertion& in) {
  for (int c = static_cast<int>(threadIdx.x); c < kClasses; c += static_cast<int>(blockDim.x)) {
    const int64_t taken = in.needed[c] < in.free.count[c] ? in.needed[c] : in.free.count[c];
    in.free.count[c] -= taken;
  }
  if (threadIdx.x != 0) return;
  const int64_t num_runs = in.num_runs();
  const Fresh fresh = in.fresh_here();
  in.cursor->line = fresh.line + in.before(kEntries, num_runs);
  in.cursor->rooms = fresh.room(in.before(kRooms, num_runs));
  publish(in.snapshot, in.next);
}

}  // namespace tgflow
