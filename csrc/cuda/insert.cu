// A batch into the store, in a constant number of launches: mark and list the runs, plan them, and, once the
// host has seen to the memory, link, scatter and publish. Sorting and prefix sums between them are torch's.
#include "tgflow/cuda/insertion.hpp"
#include "tgflow/cuda/snapshot.hpp"
#include "tgflow/cuda/tile.hpp"

using namespace tgflow;

/// Per pair: whether a run begins with it.
extern "C" __global__ void __launch_bounds__(256) insert_mark(Insertion in) {
  const int64_t p = thread_index();
  if (p >= in.num_pairs) return;
  in.run[p] = in.node[p] != kAbsent && (p == 0 || in.node[p - 1] != in.node[p]);
}

/// Per pair: notes where its run begins, once `run` is summed up; the last pair, where the last run ends.
extern "C" __global__ void __launch_bounds__(256) insert_list(Insertion in) {
  const int64_t p = thread_index();
  if (p >= in.num_pairs) return;
  const bool absent = in.node[p] == kAbsent;
  const int32_t before = p == 0 ? 0 : in.run[p - 1];
  if (in.run[p] != before) in.begin[before] = p;
  if (absent && (p == 0 || in.node[p - 1] != kAbsent)) in.begin[before] = p;
  if (!absent && p + 1 == in.num_pairs) in.begin[in.run[p]] = in.num_pairs;
}

/// The plan of run `r`, empty beyond the last.
__device__ inline RunPlan plan_of(const Insertion& in, int64_t r) {
  if (r >= in.num_runs()) return {};
  const int64_t begin = in.begin[r];
  const auto eids = [&](int64_t j) { return in.first_eid + in.row(begin + j); };
  auto* dir = const_cast<Directory*>(in.store.latest(in.node[begin]));
  return plan_run(in.store, dir, in.begin[r + 1] - begin, in.fresh.max_capacity, eids);
}

/// Per run: what it needs, and its rank among all that need the same. Counted in shared memory first, for
/// nearly all runs need the same few sizes.
extern "C" __global__ void __launch_bounds__(256) insert_plan(Insertion in) {
  constexpr int kCounters = kClasses + 2;
  __shared__ int counted[kCounters];
  for (int c = static_cast<int>(threadIdx.x); c < kCounters; c += static_cast<int>(blockDim.x))
    counted[c] = 0;
  __syncthreads();
  const int64_t r = thread_index();
  const RunPlan plan = plan_of(in, r);
  const int full = piece_class(in.fresh.max_capacity), last = piece_class(plan.capacity);
  const int room = room_class(plan.max_blocks);
  const int num_full = plan.num_blocks == 0 ? 0 : static_cast<int>(plan.num_blocks) - 1;
  Ranks ranks{0, 0, 0};
  if (num_full != 0) ranks.full = atomicAdd(&counted[full], num_full);
  if (plan.num_blocks != 0) ranks.last = atomicAdd(&counted[last], 1);
  if (plan.max_blocks != 0) ranks.room = atomicAdd(&counted[room], 1);
  if (plan.regrows != 0) atomicAdd(&counted[kClasses], 1);
  if (plan.max_blocks != 0 && plan.dir != nullptr) atomicAdd(&counted[kClasses + 1], 1);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < kCounters; c += static_cast<int>(blockDim.x)) {
    if (counted[c] != 0) counted[c] = atomicAdd(&in.needed[c], counted[c]);
  }
  __syncthreads();
  if (r >= in.num_pairs) return;
  ranks = {ranks.full + counted[full], ranks.last + counted[last], ranks.room + counted[room]};
  int64_t entries = 0;
  for (int b = 0; b < num_full; ++b) {
    if (in.is_fresh(full, ranks.full + b)) entries += in.fresh.max_capacity;
  }
  if (plan.num_blocks != 0 && in.is_fresh(last, ranks.last)) entries += plan.capacity;
  const bool fresh_room = plan.max_blocks != 0 && in.is_fresh(room, ranks.room);
  in.plans[r] = plan;
  in.ranks[r] = ranks;
  in.demand[kBlocks * in.num_pairs + r] = plan.num_blocks;
  in.demand[kEntries * in.num_pairs + r] = entries;
  in.demand[kRooms * in.num_pairs + r] = fresh_room ? int64_t{plan.max_blocks} + 1 : 0;
}

/// Whether `dir` has the block at `place`.
__device__ inline bool holds(const Directory* dir, place_t place) {
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    if (dir->blocks()[b].place == place) return true;
  }
  return false;
}

/// Gives the new blocks of run `r` their places.
__device__ inline place_t* place_blocks(const Insertion& in, const RunPlan& plan, int64_t r) {
  place_t* places = in.places + in.before(kBlocks, r);
  int64_t offset = in.before(kEntries, r);
  const Ranks ranks = in.ranks[r];
  for (uint32_t b = 0; b < plan.num_blocks; ++b) {
    const int64_t capacity = capacity_of_new(plan, b, in.fresh.max_capacity);
    const int64_t rank = b + 1 == plan.num_blocks ? ranks.last : ranks.full + static_cast<int64_t>(b);
    const int size_class = piece_class(capacity);
    const bool fresh = in.is_fresh(size_class, rank);
    places[b] = fresh ? in.fresh.place(offset, capacity) : in.free.item(size_class, rank);
    if (fresh) offset += capacity;
  }
  return places;
}

__device__ inline Directory* room_of(const Insertion& in, const RunPlan& plan, int64_t r) {
  if (plan.max_blocks == 0) return nullptr;
  const int size_class = room_class(plan.max_blocks);
  const int64_t rank = in.ranks[r].room;
  if (in.is_fresh(size_class, rank)) return in.fresh.room(in.before(kRooms, r));
  return reinterpret_cast<Directory*>(in.free.item(size_class, rank));
}

/// Per run: makes room for its entries, and notes what it no longer needs.
extern "C" __global__ void __launch_bounds__(256) insert_link(Insertion in) {
  const int64_t r = thread_index();
  const int64_t num_runs = in.num_runs();
  if (r >= num_runs) return;
  const RunPlan plan = in.plans[r];
  uint64_t block = 0, directory = 0;
  if (plan.regrows != 0) {
    block = plan.dir->blocks()[0].place;
    if (plan.dir->version != nullptr && holds(plan.dir->version->older, block))
      block = 0;  // still read there
  }
  if (plan.max_blocks != 0 && plan.dir != nullptr) directory = reinterpret_cast<uint64_t>(plan.dir);
  in.given_up[r] = block;
  in.given_up[num_runs + r] = directory;
  in.given_class[r] = static_cast<uint8_t>(block == 0 ? kNoClass : piece_class(capacity_of(block)));
  in.given_class[num_runs + r] =
      static_cast<uint8_t>(directory == 0 ? kNoClass : room_class(plan.dir->max_blocks));
  const auto first = [&](int64_t j) { return in.mark(in.begin[r] + j); };
  in.dirs[r] =
      link_run(in.store, plan, room_of(in, plan, r), place_blocks(in, plan, r), in.fresh.max_capacity, first);
}

/// Per pair: writes its entry. Neighboring threads write neighboring entries.
extern "C" __global__ void __launch_bounds__(256) insert_scatter(Insertion in) {
  const int64_t p = thread_index();
  if (p >= in.num_pairs || in.node[p] == kAbsent) return;
  const int64_t r = in.run[p] - 1;
  const int64_t j = p - in.begin[r];
  const RunPlan plan = in.plans[r];
  const bool in_tail = plan.regrows != 0 || j < plan.in_tail;
  const auto s = static_cast<uint32_t>(in_tail ? 0 : 1 + (j - plan.in_tail) / in.fresh.max_capacity);
  const Segment segment = segment_of(in.store, plan, in.dirs[r], s, in.fresh.max_capacity);
  const Mark mark = in.mark(p);
  segment.entries[j - segment.begin] = {mark.t, static_cast<uint32_t>(in.neighbor(p)),
                                        static_cast<uint32_t>(mark.eid - segment.base_eid)};
}

/// Per run: lets readers see its entries, those whose cut-off lets them.
extern "C" __global__ void __launch_bounds__(256) insert_publish(Insertion in) {
  const int64_t r = thread_index();
  if (r >= in.num_runs()) return;
  publish_run(in.plans[r], in.dirs[r], &in.heads[in.node[in.begin[r]]]);
}

/// Moves the snapshot on: readers that see the new position find all that is below it.
extern "C" __global__ void publish_snapshot(Snapshot* snapshot, Snapshot next) {
  if (thread_index() != 0) return;
  store_release(&snapshot->store.chunks, next.store.chunks);
  store_release(&snapshot->store.tiers, next.store.tiers);
  store_release(&snapshot->store.types, next.store.types);
  store_release(&snapshot->store.heads, next.store.heads);
  store_release(&snapshot->store.num_nodes, next.store.num_nodes);
  store_release(&snapshot->store.change, next.store.change);
  store_release(&snapshot->store.reads, next.store.reads);
  store_release(&snapshot->position, next.position);
}
