// A batch of few pairs into the store, in two launches: one thread block sorts and plans, and, once the host
// has seen to the memory, tiles of lanes link, scatter and publish a run each. As insert.cu, to the last
// entry.
#include "tgflow/cuda/block_sort.hpp"
#include "tgflow/cuda/block_sum.hpp"
#include "tgflow/cuda/insertion.hpp"
#include "tgflow/cuda/tile.hpp"

using namespace tgflow;

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

/// Lists the sorted pairs and the runs, and returns how many runs.
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

/// Sums up what the runs need, and tells the host.
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

/// A tile a run: links it, writes its entries and publishes them. What its lanes wrote before they met, lane
/// 0 releases with the run; the last thread block to be done releases all runs with the snapshot.
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
