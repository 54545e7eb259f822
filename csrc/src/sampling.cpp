#include "tgflow/sampling.hpp"

#include <algorithm>

#include "tgflow/detail/sample_row.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGroup = 64;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kGrain = 256;  // queries that are worth waking a thread for
constexpr int64_t kLines = 3;    // cache lines of a row

void prefetch(const void* address) { __builtin_prefetch(address); }

/// What one query sees, on the way to be found.
struct Lane {
  const Directory* dir;
  Tail tail;
  Visible seen;
  Search<Block> block;  // of size 0 where nothing is searched for
  Search<Entry> entry;
  const Entry* first;  // of the block
};

/// Runs the searches of all lanes in step: each waits for its next probe while the others look at theirs.
template <typename Item, typename Sees>
void run_in_step(Lane* lanes, int64_t size, Search<Item> Lane::* search, const Sees& sees) {
  for (bool is_open = true; is_open;) {
    is_open = false;
    for (int64_t i = 0; i < size; ++i) {
      Search<Item>& mine = lanes[i].*search;
      if (mine.size <= 1) continue;
      mine.narrow(sees(i, *mine.probe()));
      prefetch(mine.probe());
      is_open |= mine.size > 1;
    }
  }
}

/// As `find_visible`, for queries [begin, begin + size), at most `kGroup`: each step is done for all before
/// the next, so that their cache misses overlap.
void find_group(const StoreView& store, const Queries& queries, int64_t begin, int64_t size, Lane* lanes) {
  for (int64_t i = 0; i < size; ++i) prefetch(store.head_of(queries.node[begin + i]));
  for (int64_t i = 0; i < size; ++i) prefetch(lanes[i].dir = store.latest(queries.node[begin + i]));
  for (int64_t i = 0; i < size; ++i) {
    const Directory* dir = lanes[i].dir = store.as_of(lanes[i].dir, queries.limit(begin + i));
    if (dir != nullptr) prefetch(dir->blocks() + (int64_t{load_acquire(&dir->num_blocks)} - 1));
  }
  for (int64_t i = 0; i < size; ++i) {
    lanes[i].tail = tail_of(store, lanes[i].dir);
    prefetch(lanes[i].tail.newest);
  }
  const auto sees_block = [&](int64_t i, const Block& block) {
    return sees(block, queries.t[begin + i], queries.limit(begin + i));
  };
  for (int64_t i = 0; i < size; ++i) {
    Lane& lane = lanes[i];
    const Tail& tail = lane.tail;
    lane.seen = {0, 0};
    lane.block = {nullptr, 0};
    lane.entry = {nullptr, 0};
    if (tail.total == 0) continue;
    const Block* blocks = lane.dir->blocks();
    const eid_t newest = blocks[tail.last].base_eid + tail.newest->eid_offset;
    if (sees(tail.newest->t, newest, queries.t[begin + i], queries.limit(begin + i))) {
      lane.seen = {tail.total, tail.last};
    } else if (sees_block(i, blocks[0])) {
      lane.block = {blocks, tail.last + 1};
      prefetch(lane.block.probe());
    }
  }
  run_in_step(lanes, size, &Lane::block, sees_block);
  for (int64_t i = 0; i < size; ++i) {
    Lane& lane = lanes[i];
    if (lane.block.size == 0) continue;
    const Block* blocks = lane.dir->blocks();
    lane.entry = entries_of(store, blocks, lane.block.low - blocks, lane.tail);
    lane.first = lane.entry.low;
    prefetch(lane.entry.probe());
  }
  run_in_step(lanes, size, &Lane::entry, [&](int64_t i, const Entry& entry) {
    return sees(entry.t, entry.eid_offset, queries.t[begin + i],
                queries.limit(begin + i) - lanes[i].block.low->base_eid);
  });
  for (int64_t i = 0; i < size; ++i) {
    Lane& lane = lanes[i];
    const Entry* newest = lane.tail.newest;
    if (lane.block.size != 0) {
      newest = lane.entry.low;
      const int64_t here = newest - lane.first + 1;
      lane.seen = {lane.block.low->start + here, lane.block.low - lane.dir->blocks()};
    }
    for (int64_t line = 0; newest != nullptr && line < kLines; ++line) prefetch(newest - 4 * line);
  }
}

}  // namespace

void sample_neighbors(BlockStore& store, Queries queries, const Sampler& sampler, const NeighborRows& out) {
  const Epochs::Reader reader(store.epochs());
  queries.before_all = std::min(queries.before_all, store.position());
  const StoreView snapshot = store.view();
  if (sampler.types != nullptr) store.types().check(store.position());
  parallel_for(queries.size, kGrain, [&](int64_t begin, int64_t end) {
    StoreView view = snapshot;
    int64_t reads[2] = {0, 0};  // of this thread's
    Lane lanes[kGroup];
    if (store.has_two_tiers()) view.reads = reads;
    for (int64_t first = begin; first < end; first += kGroup) {
      const int64_t size = std::min(kGroup, end - first);
      find_group(view, queries, first, size, lanes);
      for (int64_t i = 0; i < size; ++i) {
        answer_row(view, lanes[i].dir, lanes[i].seen, queries, sampler, first + i, out);
      }
    }
    if (store.has_two_tiers()) store.add_reads(reads);
  });
}

}  // namespace tgflow
