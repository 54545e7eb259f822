#include "tgflow/sampling.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "query_group.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

/// Calls `step(i, row)` for the group's queries `i`, which are queries `row` of the call.
template <typename Step>
void each_row(const Group& group, const Step& step) {
  for (int64_t i = 0; i < group.size; ++i) step(i, group.begin + i);
}

/// As `recent_row`; most rows come from one block, in which the search has ended.
void recent_row(const Group& g, int64_t i, int64_t row, const NeighborRows& out) {
  const int64_t size = std::min(g.seen[i].size(), out.k);
  if (size == 0 || size > g.in_block[i]) return recent_row(g.store, g.dir[i], g.seen[i], row, out);
  const Block& block = g.dir[i]->blocks()[g.seen[i].block];
  out.count[row] = static_cast<int32_t>(size);
  g.store.count_reads(block, size);
  write_slots(out, row * out.k, g.newest[i] + 1, size, block.base_eid);
  pad_slots(out, row * out.k + size, (row + 1) * out.k);
}

void recent(Group& g, const Sampler& sampler, const NeighborRows& out) {
  if (sampler.relations == nullptr) {
    each_row(g, [&](int64_t i, int64_t row) { recent_row(g, i, row, out); });
  } else {
    each_row(g, [&](int64_t i, int64_t row) {
      filtered_recent_row(g.store, g.dir[i], g.seen[i], sampler, row, out);
    });
  }
}

/// The draws of query `row` of the call.
Draws draws_of(const Group& g, const Sampler& sampler, int64_t row) {
  return {sampler.key, g.queries.row_of(row)};
}

void uniform(Group& g, const Sampler& sampler, const NeighborRows& out) {
  if (sampler.strategy == Strategy::kWindow) {
    g.find_window(sampler.span);
  } else {
    each_row(g, [&](int64_t i, int64_t) { g.first[i] = g.seen[i].first; });
  }
  if (sampler.relations != nullptr) {
    each_row(g, [&](int64_t i, int64_t row) {
      filtered_uniform_row(g.store, g.dir[i], g.first[i], g.seen[i], sampler, draws_of(g, sampler, row), row,
                           out);
    });
    return;
  }
  const auto all = [&](int64_t i) { return g.seen[i].count - g.first[i] <= out.k; };
  each_row(g, [&](int64_t i, int64_t row) {
    if (!all(i)) uniform_draw(g.first[i], g.seen[i].count, draws_of(g, sampler, row), row, out);
  });
  each_row(g, [&](int64_t i, int64_t row) {
    if (!all(i)) locate_numbered(g.store, g.dir[i], g.seen[i].block, out.k, row, out);
  });
  each_row(g, [&](int64_t i, int64_t row) {
    if (all(i)) {
      newest_row(g.store, g.dir[i], g.seen[i], g.seen[i].count - g.first[i], row, out);
    } else {
      read_numbered(g.store, g.dir[i], out.k, row, out);
    }
  });
}

void decayed(Group& g, const Sampler& sampler, const NeighborRows& out) {
  each_row(g, [&](int64_t i, int64_t row) {
    const Visible seen = g.seen[i];
    if (sampler.relations == nullptr && seen.size() <= out.k)
      return recent_row(g.store, g.dir[i], seen, row, out);
    decayed_draw(g.store, g.dir[i], seen, sampler, g.queries.row_of(row), row, out);
    locate_numbered(g.store, g.dir[i], seen.block, out.count[row], row, out);
    read_numbered(g.store, g.dir[i], out.count[row], row, out);
  });
}

/// With two tiers, counts a thread's reads from each, and adds them to the store at the end.
class CountedReads {
 public:
  explicit CountedReads(BlockStore& store) : store_(store) {}
  ~CountedReads() {
    if (store_.has_two_tiers()) store_.add_reads(reads_);
  }
  CountedReads(const CountedReads&) = delete;
  CountedReads& operator=(const CountedReads&) = delete;

  StoreView counting(StoreView view) {
    if (store_.has_two_tiers()) view.reads = reads_;
    return view;
  }

 private:
  BlockStore& store_;
  int64_t reads_[2] = {0, 0};
};

using AnswerGroup = void(Group&, const Sampler&, const NeighborRows&);

AnswerGroup& answer_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kRecent:
      return recent;
    case Strategy::kDecayed:
      return decayed;
    case Strategy::kUniform:
    case Strategy::kWindow:
      return uniform;
  }
  throw std::invalid_argument("no such strategy: " + std::to_string(static_cast<int>(strategy)));
}

}  // namespace

void sample_neighbors(BlockStore& store, Queries queries, const Sampler& sampler, const NeighborRows& out) {
  AnswerGroup& answer = answer_of(sampler.strategy);
  const Epochs::Reader reader(store.epochs());
  queries.before_all = std::min(queries.before_all, store.position());
  const StoreView snapshot = store.view();
  if (sampler.relations != nullptr) store.relations().check(store.position());
  const int64_t at_once = store.is_on_disk() ? BlockStore::kReadAhead : queries.size;
  for (int64_t first = 0; first < queries.size; first += at_once) {
    const int64_t num = std::min(at_once, queries.size - first);
    if (store.is_on_disk()) {
      store.read_ahead(static_cast<size_t>(first), static_cast<size_t>(queries.size), out.k,
                       [&](size_t i) { return snapshot.latest(queries.node[i]); });
    }
    parallel_for(num, kGrain, [&](int64_t begin, int64_t end) {
      CountedReads reads(store);
      const StoreView view = reads.counting(snapshot);
      Group group(view, queries, first + begin, first + end);
      while (group.find_next(out.k)) answer(group, sampler, out);
    });
  }
}

}  // namespace tgflow
