// Queries whose cache misses overlap.
#pragma once

#include <algorithm>

#include "tgflow/detail/sample_row.hpp"

namespace tgflow {

constexpr int64_t kGroup = 32;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kLanes = 4;   // searches in flight
constexpr int64_t kPrefetched = 16;  // entries of a row

inline void prefetch(const void* address) { __builtin_prefetch(address); }

/// Fetches a row of `size` entries that ends at `newest`, wherever the block begins: a fetch cannot fail.
inline void prefetch_row(const Entry* newest, int64_t size) {
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
  Group(const StoreView& view, const Queries& asked) : store(view), queries(asked) {}

  const StoreView& store;
  const Queries& queries;
  int64_t begin = 0;
  int64_t size = 0;
  const Directory* dir[kGroup];
  Visible seen[kGroup];
  int64_t first[kGroup];  // of the window

  /// Fills `dir` and `seen`; fetches the newest `k` entries of each.
  void find(int64_t k) {
    const node_t* node = queries.node + begin;
    for (int64_t i = 0; i < size; ++i) {
      if (node[i] >= 0 && node[i] < store.num_nodes) prefetch(store.heads + node[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      dir[i] = store.latest(node[i]);
      prefetch(dir[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      dir[i] = store.as_of(dir[i], queries.limit(begin + i));
      if (dir[i] != nullptr) prefetch(dir[i]->blocks() + (load_acquire(&dir[i]->num_blocks) - 1));
    }
    const int64_t row = std::min(k, kPrefetched);
    for (int64_t i = 0; i < size; ++i) {
      tail_[i] = tail_of(store, dir[i]);
      prefetch_row(tail_[i].newest, row);
    }
    for (int64_t i = 0; i < size; ++i) {
      at_t_[i] = queries.t[begin + i];
      at_limit_[i] = queries.limit(begin + i);
    }
    search(seen, row);
  }

  /// Fills `first` with the numbers of the oldest entries in windows of this width; `seen.count` without any.
  void find_window(int64_t width) {
    for (int64_t i = 0; i < size; ++i) {
      at_t_[i] = window_start(queries.t[begin + i], width);
      at_limit_[i] = kEveryEvent;
    }
    Visible earlier[kGroup];
    search(earlier, 0);
    for (int64_t i = 0; i < size; ++i) first[i] = std::min(earlier[i].count, seen[i].count);
  }

 private:
  /// Finds what is earlier than `at_t_` and below `at_limit_`; fetches the newest `row` entries of it.
  void search(Visible* found, int64_t row) {
    look_at_tails(found);
    run_searches(blocks_, t_, limit_, num_open_);
    for (int64_t j = 0; j < num_open_; ++j) {
      const int64_t i = open_[j];
      const Block* blocks = dir[i]->blocks();
      const Block* block = blocks_[j].low;
      limit_[j] -= block->base_eid;
      entries_[j] = entries_of(store, blocks, block - blocks, tail_[i]);
      first_[j] = entries_[j].low;
      prefetch(entries_[j].probe());
    }
    run_searches(entries_, t_, limit_, num_open_);
    for (int64_t j = 0; j < num_open_; ++j) {
      const int64_t i = open_[j];
      const Block* block = blocks_[j].low;
      prefetch_row(entries_[j].low, row);
      found[i] = {block->start + (entries_[j].low - first_[j]) + 1, block - dir[i]->blocks()};
    }
  }

  /// Answers those who see everything or nothing, and opens a search for the others.
  void look_at_tails(Visible* found) {
    num_open_ = 0;
    for (int64_t i = 0; i < size; ++i) {
      const tick_t t = at_t_[i];
      const eid_t before = at_limit_[i];
      const Tail& tail = tail_[i];
      found[i] = {0, 0};
      if (tail.total == 0) continue;
      const Block* blocks = dir[i]->blocks();
      if (sees(tail.newest->t, blocks[tail.last].base_eid + tail.newest->eid_offset, t, before)) {
        found[i] = {tail.total, tail.last};
        continue;
      }
      open_[num_open_] = i;
      t_[num_open_] = t;
      limit_[num_open_] = before;
      blocks_[num_open_] = {blocks, tail.last + 1};
      num_open_ += sees(blocks[0], t, before);
    }
  }

  Tail tail_[kGroup];
  tick_t at_t_[kGroup];
  eid_t at_limit_[kGroup];
  // Queries that do not see the newest entry but do see some.
  int64_t num_open_ = 0;
  int64_t open_[kGroup];
  tick_t t_[kGroup + kLanes];
  int64_t limit_[kGroup + kLanes];
  Search<Block> blocks_[kGroup + kLanes];
  Search<Entry> entries_[kGroup + kLanes];
  const Entry* first_[kGroup];
};

}  // namespace tgflow
