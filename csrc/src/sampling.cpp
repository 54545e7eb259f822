#include "tgflow/sampling.hpp"

#include <algorithm>

#include "tgflow/detail/recent_row.hpp"
#include "tgflow/detail/uniform_row.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGroup = 32;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kGrain = 256;      // queries that are worth waking a thread for
constexpr int64_t kLanes = 4;        // searches in flight
constexpr int64_t kPrefetched = 16;  // entries of a row

void prefetch(const void* address) { __builtin_prefetch(address); }

/// Fetches a row of `size` entries that ends at `newest`, wherever the block begins: a fetch cannot fail.
void prefetch_row(const Entry* newest, int64_t size) {
  const uintptr_t last = reinterpret_cast<uintptr_t>(newest);
  const uintptr_t bytes = static_cast<uintptr_t>(size) * sizeof(Entry);
  prefetch(newest);
  prefetch(reinterpret_cast<const void*>(last - bytes / 2));
  prefetch(reinterpret_cast<const void*>(last - bytes));
}

/// Runs `size` searches to their ends, several at a time so that their cache misses overlap.
/// `searches` and its companions have room for `kLanes` more.
template <typename Item>
void run_searches(Search<Item>* searches, const tick_t* t, const int64_t* limit, int64_t size) {
  static const Item nobody{};
  for (int64_t i = size; i < size + kLanes - 1; ++i) searches[i] = {&nobody, 1};
  for (int64_t i = 0; i < size; i += kLanes) {
    Search<Item> lane[kLanes];
    int64_t open = 0;
#pragma GCC unroll 8
    for (int64_t j = 0; j < kLanes; ++j) {
      lane[j] = searches[i + j];
      open |= lane[j].size - 1;
    }
    while (open != 0) {
      open = 0;
#pragma GCC unroll 8
      for (int64_t j = 0; j < kLanes; ++j) {
        narrow(lane[j], t[i + j], limit[i + j]);
        open |= lane[j].size - 1;
      }
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kLanes; ++j) searches[i + j] = lane[j];
  }
}

/// Queries [begin, begin + size) of a call. Each step is done for all before the next, so that their cache
/// misses overlap; `find_visible` is the same for one query.
class Group {
 public:
  explicit Group(const StoreView& view) : store(view) {}

  const StoreView& store;
  int64_t begin = 0;
  int64_t size = 0;
  const Directory* dir[kGroup];
  Visible seen[kGroup];

  void find(const Queries& queries, int64_t k) {
    const node_t* node = queries.node + begin;
    for (int64_t i = 0; i < size; ++i) {
      if (node[i] >= 0 && node[i] < store.num_nodes) prefetch(store.heads + node[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      dir[i] = store.latest(node[i]);
      prefetch(dir[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      dir[i] = StoreView::as_of(dir[i], queries.limit(begin + i));
      if (dir[i] != nullptr) prefetch(dir[i]->blocks() + (load_acquire(&dir[i]->num_blocks) - 1));
    }
    const int64_t row = std::min(k, kPrefetched);
    for (int64_t i = 0; i < size; ++i) {
      tail_[i] = tail_of(store, dir[i]);
      prefetch_row(tail_[i].newest, row);
    }
    look_at_tails(queries);
    search(row);
  }

 private:
  void look_at_tails(const Queries& queries) {
    num_open_ = 0;
    for (int64_t i = 0; i < size; ++i) {
      const tick_t t = queries.t[begin + i];
      const eid_t before = queries.limit(begin + i);
      const Tail& tail = tail_[i];
      seen[i] = {0, 0};
      if (tail.total == 0) continue;
      const Block* blocks = dir[i]->blocks();
      if (sees(tail.newest->t, blocks[tail.last].base_eid + tail.newest->eid_offset, t, before)) {
        seen[i] = {tail.total, tail.last};
        continue;
      }
      open_[num_open_] = i;
      t_[num_open_] = t;
      limit_[num_open_] = before;
      blocks_[num_open_] = {blocks, tail.last + 1};
      num_open_ += sees(blocks[0], t, before);
    }
  }

  void search(int64_t row) {
    run_searches(blocks_, t_, limit_, num_open_);
    for (int64_t j = 0; j < num_open_; ++j) {
      const int64_t i = open_[j];
      const Block* blocks = dir[i]->blocks();
      const Block* found = blocks_[j].low;
      limit_[j] -= found->base_eid;
      entries_[j] = entries_of(store, blocks, found - blocks, tail_[i]);
      first_[j] = entries_[j].low;
      prefetch(entries_[j].probe());
    }
    run_searches(entries_, t_, limit_, num_open_);
    for (int64_t j = 0; j < num_open_; ++j) {
      const int64_t i = open_[j];
      const Block* found = blocks_[j].low;
      prefetch_row(entries_[j].low, row);
      seen[i] = {found->start + (entries_[j].low - first_[j]) + 1, found - dir[i]->blocks()};
    }
  }

  Tail tail_[kGroup];
  // Queries that do not see the newest entry but do see some.
  int64_t num_open_ = 0;
  int64_t open_[kGroup];
  tick_t t_[kGroup + kLanes];
  int64_t limit_[kGroup + kLanes];
  Search<Block> blocks_[kGroup + kLanes];
  Search<Entry> entries_[kGroup + kLanes];
  const Entry* first_[kGroup];
};

/// Calls `each(group)` for all queries, found in the store's current snapshot.
template <typename Each>
void for_each_group(BlockStore& store, Queries queries, int64_t k, const Each& each) {
  const Epochs::Reader reader(store.epochs());
  queries.before_all = std::min(queries.before_all, store.position());
  const StoreView view = store.view();
  parallel_for(queries.size, kGrain, [&](int64_t begin, int64_t end) {
    Group group(view);
    for (group.begin = begin; group.begin < end; group.begin += kGroup) {
      group.size = std::min(kGroup, end - group.begin);
      group.find(queries, k);
      each(group);
    }
  });
}

}  // namespace

void recent_neighbors(BlockStore& store, const Queries& queries, const NeighborRows& out) {
  for_each_group(store, queries, out.k, [&](const Group& group) {
    for (int64_t i = 0; i < group.size; ++i)
      recent_row(group.store, group.dir[i], group.seen[i], group.begin + i, out);
  });
}

void uniform_neighbors(BlockStore& store, const Queries& queries, uint64_t key, const NeighborRows& out) {
  for_each_group(store, queries, out.k, [&](const Group& group) {
    const auto each_row = [&](const auto& step) {
      for (int64_t i = 0; i < group.size; ++i) step(i, group.begin + i);
    };
    each_row([&](int64_t i, int64_t row) { uniform_draw(group.seen[i], key, row, out); });
    each_row(
        [&](int64_t i, int64_t row) { uniform_locate(group.store, group.dir[i], group.seen[i], row, out); });
    each_row(
        [&](int64_t i, int64_t row) { uniform_read(group.store, group.dir[i], group.seen[i], row, out); });
  });
}

}  // namespace tgflow
