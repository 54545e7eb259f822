// A batch of any size into the store, in a constant number of launches: mark and list the runs, plan them,
// and, once the host has seen to the memory, link, scatter and publish. Sorting and prefix sums between them
// are torch's.
#include "tgflow/cuda/insertion.hpp"
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

/// Per run: what it needs, and its rank among all that need the same. Counted in shared memory first, for
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

/// Tells the host what is needed, once demands are summed up.
extern "C" __global__ void __launch_bounds__(32) insert_totals(Insertion in) {
  if (thread_index() != 0) return;
  const int64_t end = in.num_pairs;
  note_totals(in, in.num_runs(), {in.before(kBlocks, end), in.before(kEntries, end), in.before(kRooms, end)});
}

/// Per run: makes room for its entries, and notes what it no longer needs.
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

/// Per run: lets readers see its entries, those whose cut-off lets them.
extern "C" __global__ void __launch_bounds__(256) insert_publish(Insertion in) {
  const int64_t r = thread_index();
  if (r >= in.num_runs()) return;
  publish_run(in.plans[r], in.dirs[r], &in.heads[in.node[in.begin[r]]]);
}

/// One thread block: counts off what was taken and moves the snapshot on.
extern "C" __global__ void __launch_bounds__(256) insert_finish(Insertion in) { finish_insertion(in); }

/// Moves the snapshot on where the host knows all: after changes of the past, compaction, or a move.
extern "C" __global__ void publish_snapshot(Snapshot* snapshot, Snapshot next, FreshCursor* cursor,
                                            FreshCursor next_cursor) {
  if (thread_index() != 0) return;
  *cursor = next_cursor;
  publish(snapshot, next);
}
