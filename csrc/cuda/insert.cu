// Inserts a batch into the store. Any size takes a constant number of launches: mark and list the runs, plan
// them, and, once the host has provided memory, link, scatter and publish. Sorting and prefix sums between
// them are torch's. Few pairs take two launches: one thread block sorts and plans, then one tile of lanes per
// run links, scatters and publishes; the result is identical to the last entry.
#include "tgflow/cuda/insertion.hpp"
#include "tgflow/cuda/thread_block.hpp"
#include "tgflow/cuda/warp.hpp"

using namespace tgflow;

/// Per pair: whether it starts a run.
extern "C" __global__ void __launch_bounds__(256) insert_mark(Insertion in) {
  const int64_t p = thread_index();
  if (p >= in.num_pairs) return;
  in.run[p] = in.node[p] != kAbsent && (p == 0 || in.node[p - 1] != in.node[p]);
}

/// Per pair: stores the start of its run, after the prefix sum of `run`; the last pair also stores the end.
extern "C" __global__ void __launch_bounds__(256) insert_list(Insertion in) {
  const int64_t p = thread_index();
  if (p >= in.num_pairs) return;
  const bool absent = in.node[p] == kAbsent;
  const int32_t before = p == 0 ? 0 : in.run[p - 1];
  if (in.run[p] != before) in.begin[before] = p;
  if (absent && (p == 0 || in.node[p - 1] != kAbsent)) in.begin[before] = p;
  if (!absent && p + 1 == in.num_pairs) in.begin[in.run[p]] = in.num_pairs;
}

/// Per run: its demand, and its rank among all runs with the same demand. Counted in shared memory first, as
/// nearly all runs need the same few sizes.
extern "C" __global__ void __launch_bounds__(256) insert_plan(Insertion in) {
  __shared__ int counted[kCounters];
  for (int c = static_cast<int>(threadIdx.x); c < kCounters; c += static_cast<int>(blockDim.x))
    counted[c] = 0;
  __syncthreads();
  const int64_t r = thread_index();
  const RunPlan plan = plan_of(in, r);
  Ranks ranks = count_needs(in, plan, counted);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < kMaxBlocks; c += static_cast<int>(blockDim.x)) {
    if (counted[c] != 0) counted[c] = atomicAdd(&in.needed[c], counted[c]);
  }
  if (threadIdx.x == 0) atomicMax(&in.needed[kMaxBlocks], counted[kMaxBlocks]);
  __syncthreads();
  if (r >= in.num_pairs) return;
  ranks.full += counted[piece_class(in.fresh.max_capacity)];
  ranks.last += counted[piece_class(plan.capacity)];
  ranks.room += counted[room_class(plan.max_blocks)];
  const Demand demand = demand_of(in, plan, ranks);
  in.plans[r] = plan;
  in.ranks[r] = ranks;
  in.demand[kBlocks * in.num_pairs + r] = demand.blocks;
  in.demand[kEntries * in.num_pairs + r] = demand.entries;
  in.demand[kRooms * in.num_pairs + r] = demand.rooms;
}

/// Writes the totals for the host, after the prefix sums of demands.
extern "C" __global__ void __launch_bounds__(32) insert_totals(Insertion in) {
  if (thread_index() != 0) return;
  const int64_t end = in.num_pairs;
  note_totals(in, in.num_runs(), {in.before(kBlocks, end), in.before(kEntries, end), in.before(kRooms, end)});
}

/// Per run: makes room for its entries, and records replaced memory.
extern "C" __global__ void __launch_bounds__(256) insert_link(Insertion in) {
  const int64_t r = thread_index();
  if (r >= in.num_pairs) return;
  const bool is_run = r < in.num_runs();
  const RunPlan plan = is_run ? in.plans[r] : RunPlan{};
  note_given_up(in, plan, r);
  if (!is_run) return;
  const auto first = [&](int64_t j) { return in.mark(in.begin[r] + j); };
  in.dirs[r] =
      link_run(in.store, plan, room_of(in, plan, r), place_blocks(in, plan, r), in.fresh.max_capacity, first);
}

/// Per pair: writes its entry. Neighboring threads write neighboring entries.
extern "C" __global__ void __launch_bounds__(256) insert_scatter(Insertion in) {
  const int64_t p = thread_index();
  if (p >= in.num_pairs || in.node[p] == kAbsent) return;
  const int64_t r = in.run[p] - 1;
  write_entry(in, in.plans[r], in.dirs[r], p, p - in.begin[r]);
}

/// Per run: publishes its entries to readers whose cut-off includes them.
extern "C" __global__ void __launch_bounds__(256) insert_publish(Insertion in) {
  const int64_t r = thread_index();
  if (r >= in.num_runs()) return;
  publish_run(in.plans[r], in.dirs[r], &in.heads[in.node[in.begin[r]]]);
}

/// One thread block: subtracts used memory and advances the snapshot.
extern "C" __global__ void __launch_bounds__(256) insert_finish(Insertion in) { finish_insertion(in); }

/// Advances the snapshot where the host has all values: after changes of the past, compaction, or a move.
extern "C" __global__ void publish_snapshot(Snapshot* snapshot, Snapshot next, FreshCursor* cursor,
                                            FreshCursor next_cursor) {
  if (thread_index() != 0) return;
  *cursor = next_cursor;
  publish(snapshot, next);
}

constexpr int kSmallPairs = 4096;
constexpr int kSmallThreads = 1024;
constexpr int kPairBits = 16;

/// The local id of a node, or `kAbsent`.
__device__ inline int32_t local_of(const Insertion& in, node_t v) {
  const int64_t i = in.store.shard.local(v);
  return i == kNotHeld ? kAbsent : static_cast<int32_t>(i);
}

/// The node of pair `p`, in the order of the batch.
__device__ inline int32_t node_of(const Insertion& in, int64_t p) {
  if (in.sides == 1) return local_of(in, in.src[p]);
  const int64_t row = p >> 1;
  if ((p & 1) == 0) return local_of(in, in.src[row]);
  return in.src[row] == in.dst[row] ? kAbsent : local_of(in, in.dst[row]);
}

/// Lists the sorted pairs and the runs, and returns the number of runs.
__device__ inline int64_t list_runs(const Insertion& in, const uint64_t* keys, int64_t* sums) {
  const auto node = [&](int64_t p) { return static_cast<int32_t>(keys[p] >> kPairBits); };
  const auto begins = [&](int64_t p) { return node(p) != kAbsent && (p == 0 || node(p - 1) != node(p)); };
  const Share share = Share::of(in.num_pairs);
  int64_t mine = 0, num_runs;
  for (int64_t p = share.begin; p < share.end; ++p) mine += begins(p);
  int64_t run = sum_before(mine, sums, &num_runs);
  for (int64_t p = share.begin; p < share.end; ++p) {
    const auto number = static_cast<int64_t>(keys[p] & ((1u << kPairBits) - 1));
    if (begins(p)) in.begin[run++] = p;
    if (node(p) == kAbsent && (p == 0 || node(p - 1) != kAbsent)) in.begin[num_runs] = p;
    in.node[p] = node(p);
    in.pair[p] = in.sides == 1 ? 2 * number : number;
    in.run[p] = static_cast<int32_t>(run);
  }
  if (share.end == in.num_pairs && share.begin < share.end && node(share.end - 1) != kAbsent) {
    in.begin[num_runs] = in.num_pairs;
  }
  return num_runs;
}

/// Sums the demands of the runs, and writes the totals for the host.
__device__ inline void sum_demands(const Insertion& in, int64_t num_runs, int64_t* sums) {
  const Share share = Share::of(num_runs);
  Demand mine{0, 0, 0}, total{0, 0, 0};
  for (int64_t r = share.begin; r < share.end; ++r) {
    const Demand demand = demand_of(in, in.plans[r], in.ranks[r]);
    mine = {mine.blocks + demand.blocks, mine.entries + demand.entries, mine.rooms + demand.rooms};
    in.demand[kBlocks * in.num_pairs + r] = mine.blocks;
    in.demand[kEntries * in.num_pairs + r] = mine.entries;
    in.demand[kRooms * in.num_pairs + r] = mine.rooms;
  }
  const int64_t blocks = sum_before(mine.blocks, sums, &total.blocks);
  const int64_t entries = sum_before(mine.entries, sums, &total.entries);
  const int64_t rooms = sum_before(mine.rooms, sums, &total.rooms);
  for (int64_t r = share.begin; r < share.end; ++r) {
    in.demand[kBlocks * in.num_pairs + r] += blocks;
    in.demand[kEntries * in.num_pairs + r] += entries;
    in.demand[kRooms * in.num_pairs + r] += rooms;
  }
  if (threadIdx.x == 0) note_totals(in, num_runs, total);
}

/// One thread block, whole warps: sorts the pairs by node, lists the runs and plans them.
extern "C" __global__ void __launch_bounds__(1024) insert_small_plan(Insertion in) {
  __shared__ uint64_t keys[kSmallPairs];
  __shared__ int64_t sums[kSmallThreads / kWarp];
  __shared__ int counted[kCounters];
  const int first = static_cast<int>(threadIdx.x), stride = static_cast<int>(blockDim.x);
  int size = 1;
  while (size < in.num_pairs) size *= 2;
  for (int p = first; p < size; p += stride) {
    const auto number = static_cast<uint64_t>(p);
    keys[p] = p < in.num_pairs ? static_cast<uint64_t>(node_of(in, p)) << kPairBits | number : ~uint64_t{0};
  }
  for (int c = first; c < kCounters; c += stride) counted[c] = 0;
  __syncthreads();
  sort_keys(keys, size);
  const int64_t num_runs = list_runs(in, keys, sums);
  __syncthreads();
  for (int64_t r = first; r < num_runs; r += stride) {
    const RunPlan plan = plan_of(in, r);
    in.plans[r] = plan;
    in.ranks[r] = count_needs(in, plan, counted);
  }
  __syncthreads();
  for (int c = first; c < kCounters; c += stride) in.needed[c] = counted[c];
  __syncthreads();
  sum_demands(in, num_runs, sums);
}

/// Makes room for the entries of run `r`, as `link_run`; every lane returns its directory.
template <int kLanes>
__device__ inline Directory* link_together(const Tile<kLanes>& tile, const Insertion& in, const RunPlan& plan,
                                           int64_t r) {
  Directory* dir = plan.dir;
  if (plan.regrows != 0) {
    const place_t place = tile.broadcast(tile.lane == 0 ? *place_blocks(in, plan, r) : 0, 0);
    Block& block = dir->blocks()[0];
    const Entry* from = in.store.entries(block);
    Entry* to = in.store.entries_at(place);
    for (int64_t i = tile.lane; i < dir->total; i += kLanes) to[i] = from[i];
    tile.sync();
    if (tile.lane == 0) store_release(&block.place, place);
  } else if (tile.lane == 0) {
    const auto first = [&](int64_t j) { return in.mark(in.begin[r] + j); };
    dir = link_run(in.store, plan, room_of(in, plan, r), place_blocks(in, plan, r), in.fresh.max_capacity,
                   first);
  }
  tile.sync();
  return tile.agreed(dir);
}

/// One tile per run: links it, writes its entries and publishes them. Lane 0 releases, with the run, what
/// all lanes wrote before they met; the last finishing thread block releases all runs with the snapshot.
extern "C" __global__ void __launch_bounds__(256) insert_small_commit(Insertion in) {
  __shared__ bool is_last;
  const auto tile = Tile<16>::here();
  const int64_t num_runs = in.num_runs();
  for (int64_t r = tile.index(); r < in.num_pairs; r += tile.count()) {
    const bool is_run = r < num_runs;
    const RunPlan plan = is_run ? in.plans[r] : RunPlan{};
    if (tile.lane == 0) note_given_up(in, plan, r);
    if (!is_run) continue;
    Directory* dir = link_together(tile, in, plan, r);
    const int64_t begin = in.begin[r];
    for (int64_t j = tile.lane; j < plan.size; j += 16) write_entry(in, plan, dir, begin + j, j);
    tile.sync();
    if (tile.lane == 0) publish_run(plan, dir, &in.heads[in.node[begin]]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(&in.cursor->finished, 1ull) + 1 == gridDim.x;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  finish_insertion(in);
  if (threadIdx.x == 0) in.cursor->finished = 0;
}
