// Groups of queries with overlapping cache misses.
#pragma once

#include <algorithm>

#include "tgflow/detail/sample_row.hpp"

namespace tgflow {

constexpr int64_t kGroup = 64;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kGrain = 256;      // least number of queries for another thread
constexpr int64_t kPrefetched = 16;  // entries of a row

inline void prefetch(const void* address) { __builtin_prefetch(address); }

/// Prefetches a row of `size` entries that ends at `newest`, across the block's start: it cannot fail.
inline void prefetch_entries(const Entry* newest, int64_t size) {
  const uintptr_t last = reinterpret_cast<uintptr_t>(newest);
  const uintptr_t bytes = static_cast<uintptr_t>(size) * sizeof(Entry);
  prefetch(newest);
  prefetch(reinterpret_cast<const void*>(last - bytes / 2));
  prefetch(reinterpret_cast<const void*>(last - bytes));
}

/// Runs `size` searches, at most `kGroup`, to their ends in step: each one's probe is prefetched while the
/// others run. `sees(i, item)`: whether search `i` continues from `item`.
template <typename Item, typename Sees>
void run_searches(Search<Item>* searches, int64_t size, const Sees& sees) {
  int32_t open[kGroup];
  int64_t num_open = 0;
  const auto keep = [&](int32_t i) {
    open[num_open] = i;
    num_open += searches[i].size > 1;
  };
  for (int32_t i = 0; i < size; ++i) {
    prefetch(searches[i].probe());
    keep(i);
  }
  while (num_open > 0) {
    const int64_t asked = num_open;
    num_open = 0;
    for (int64_t j = 0; j < asked; ++j) {
      const int32_t i = open[j];
      searches[i].narrow(sees(i, *searches[i].probe()));
      prefetch(searches[i].probe());
      keep(i);
    }
  }
}

/// Queries [begin, begin + size) of a call. Each step runs for all before the next, so that their cache
/// misses overlap; `find_visible` is the same for one query.
class Group {
 public:
  /// Starts before queries [from, to).
  Group(const StoreView& view, const Queries& asked, int64_t from, int64_t to)
      : store(view), queries(asked), begin(from), end_(to) {
    fetch_heads();
    fetch_directories();
  }

  const StoreView& store;
  const Queries& queries;
  int64_t begin;
  int64_t size = 0;
  const Directory* dir[kGroup];
  Visible seen[kGroup];
  const Entry* newest[kGroup];  // newest visible entry
  int64_t in_block[kGroup];     // visible entries in the newest one's block
  int64_t first[kGroup];        // first entry of the window

  /// Advances to the next queries; false if there are none. Fills `dir` and `seen`, prefetches the newest `k`
  /// entries of each, and starts the look-ups of the queries after them.
  bool find_next(int64_t k) {
    begin += size;
    size = num_next_;
    if (size == 0) return false;
    std::copy_n(next_, size, dir);
    fetch_heads();
    for (int64_t i = 0; i < size; ++i) {
      dir[i] = store.as_of(dir[i], queries.limit(begin + i));
      if (dir[i] != nullptr) prefetch(dir[i]->blocks() + (int64_t{load_acquire(&dir[i]->num_blocks)} - 1));
    }
    for (int64_t i = 0; i < size; ++i) {
      tail_[i] = tail_of(store, dir[i]);
      at_t_[i] = queries.t[begin + i];
      at_limit_[i] = queries.limit(begin + i);
    }
    std::fill_n(in_block, size, 0);
    search<Earlier>(seen, std::min(k, kPrefetched));
    if (!queries.since.is_all()) find_since();
    fetch_directories();
    return true;
  }

  /// Fills `first` with the numbers of the oldest entries in windows of this width; `seen.count` if empty.
  void find_window(int64_t width) {
    for (int64_t i = 0; i < size; ++i) {
      at_t_[i] = window_start(queries.t[begin + i], width);
      at_limit_[i] = kEveryEvent;
    }
    Visible earlier[kGroup];
    search<Earlier>(earlier, 0);
    for (int64_t i = 0; i < size; ++i) {
      first[i] = std::clamp(earlier[i].count, seen[i].first, seen[i].count);
    }
  }

 private:
  void find_since() {
    std::fill_n(at_t_, size, queries.since.t);
    std::fill_n(at_limit_, size, queries.since.eid);
    Visible outside[kGroup];
    search<Outside>(outside, 0);
    for (int64_t i = 0; i < size; ++i) seen[i].first = std::min(outside[i].count, seen[i].count);
  }

  void fetch_heads() {
    num_next_ = std::min(kGroup, end_ - begin - size);
    const node_t* node = queries.node + begin + size;
    for (int64_t i = 0; i < num_next_; ++i) {
      const Directory* const* head = store.head_of(node[i]);
      if (head != nullptr) prefetch(head);
    }
  }

  void fetch_directories() {
    const node_t* node = queries.node + begin + size;
    for (int64_t i = 0; i < num_next_; ++i) {
      next_[i] = store.latest(node[i]);
      prefetch(next_[i]);
    }
  }

  /// Finds the entries for which `Rule` holds, of `at_t_` and `at_limit_`; prefetches the newest `row` of
  /// them.
  template <typename Rule>
  void search(Visible* found, int64_t row) {
    open_searches<Rule>();
    run_searches(blocks_, num_open_,
                 [&](int32_t j, const Block& block) { return holds<Rule>(block, t_[j], limit_[j]); });
    enter_blocks<Rule>();
    run_searches(entries_, num_open_, [&](int32_t j, const Entry& entry) {
      return Rule::holds(entry.t, entry.eid_offset, t_[j], limit_[j]);
    });
    std::fill_n(found, size, Visible{0, 0});
    for (int64_t j = 0; j < num_open_; ++j) {
      const Block* block = blocks_[j].low;
      const int64_t here = entries_[j].low - first_[j] + 1;
      found[open_[j]] = {block->start + here, block - dir[open_[j]]->blocks()};
      if (row == 0) continue;
      newest[open_[j]] = entries_[j].low;
      in_block[open_[j]] = here;
      prefetch_entries(entries_[j].low, row);
      if (here < row && block->start > 0) {
        const Block& older = block[-1];
        prefetch_entries(store.entries(older) + (block->start - older.start - 1), row - here);
      }
    }
  }

  /// Opens a search for each query that sees anything: in the last block if its first entry is visible,
  /// else over the blocks before it.
  template <typename Rule>
  void open_searches() {
    num_open_ = 0;
    for (int64_t i = 0; i < size; ++i) {
      const Tail& tail = tail_[i];
      if (tail.total == 0) continue;
      const Block* blocks = dir[i]->blocks();
      const Block* last = blocks + tail.last;
      const bool in_last = holds<Rule>(*last, at_t_[i], at_limit_[i]);
      prefetch(in_last ? static_cast<const void*>(tail.newest) : last);
      open_[num_open_] = i;
      t_[num_open_] = at_t_[i];
      limit_[num_open_] = at_limit_[i];
      blocks_[num_open_] = {in_last ? last : blocks, in_last ? 1 : tail.last};
      num_open_ += holds<Rule>(*blocks, at_t_[i], at_limit_[i]);
    }
  }

  /// Opens a search in the block of each; none if the last block is entirely visible, the most common case.
  template <typename Rule>
  void enter_blocks() {
    for (int64_t j = 0; j < num_open_; ++j) {
      const int64_t i = open_[j];
      const Tail& tail = tail_[i];
      const Block* blocks = dir[i]->blocks();
      const Block* block = blocks_[j].low;
      limit_[j] -= block->base_eid;
      if (block - blocks != tail.last) {
        entries_[j] = entries_of(store, blocks, block - blocks, tail);
        first_[j] = entries_[j].low;
        continue;
      }
      const int64_t here = tail.total - block->start;
      const bool all = Rule::holds(tail.newest->t, tail.newest->eid_offset, t_[j], limit_[j]);
      first_[j] = tail.newest - (here - 1);  // the block's place may have changed since `newest` was read
      entries_[j] = {all ? tail.newest : first_[j], all ? 1 : here};
    }
  }

  int64_t end_;
  int64_t num_next_;  // queries of the next group
  const Directory* next_[kGroup];
  Tail tail_[kGroup];
  tick_t at_t_[kGroup];
  eid_t at_limit_[kGroup];
  // Queries with visible entries.
  int64_t num_open_ = 0;
  int64_t open_[kGroup];
  tick_t t_[kGroup];
  int64_t limit_[kGroup];
  Search<Block> blocks_[kGroup];
  Search<Entry> entries_[kGroup];
  const Entry* first_[kGroup];
};

}  // namespace tgflow
