#include "tgflow/sampling.hpp"

#include <algorithm>

#include "tgflow/detail/recent_row.hpp"
#include "tgflow/detail/uniform_row.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGroup = 32;  // queries in flight: enough to hide memory latency, few enough to stay cached
constexpr int64_t kGrain = 1024;  // queries that are worth waking a thread for

void prefetch(const void* address) { __builtin_prefetch(address); }

/// Queries [begin, begin + size) of a call, one stage at a time so that their cache misses overlap.
struct Group {
  const Directory* dir[kGroup];
  Visible seen[kGroup];
  int64_t begin;
  int64_t size;

  void find(const StoreView& view, const Queries& queries, int64_t k) {
    for (int64_t i = 0; i < size; ++i) {
      const node_t v = queries.node[begin + i];
      if (v >= 0 && v < view.num_nodes) prefetch(view.heads + v);
    }
    for (int64_t i = 0; i < size; ++i) {
      dir[i] = view.directory(queries.node[begin + i]);
      prefetch(dir[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      if (dir[i] != nullptr) prefetch(dir[i]->blocks() + (load_acquire(&dir[i]->num_blocks) - 1));
    }
    for (int64_t i = 0; i < size; ++i) {
      if (dir[i] != nullptr) prefetch_tail(*dir[i], k);
    }
    for (int64_t i = 0; i < size; ++i) {
      seen[i] = visible(dir[i], queries.t[begin + i], queries.limit(begin + i));
    }
  }

  static void prefetch_tail(const Directory& directory, int64_t k) {
    const int64_t total = load_acquire(&directory.total);
    const Block& tail = directory.blocks()[load_acquire(&directory.num_blocks) - 1];
    if (total <= tail.start) return;
    const Entry* end = load_acquire(&tail.entries) + (total - tail.start);
    const Entry* first = end - std::min({k, total - tail.start, int64_t{16}});
    for (const Entry* entry = end - 1; entry >= first; entry -= 4) prefetch(entry);
  }
};

/// Calls `each(group)` for all queries, found in the store's current snapshot.
template <typename Each>
void for_each_group(BlockStore& store, Queries queries, int64_t k, const Each& each) {
  const Epochs::Reader reader(store.epochs());
  queries.before_all = std::min(queries.before_all, store.position());
  const StoreView view = store.view();
  parallel_for(queries.size, kGrain, [&](int64_t begin, int64_t end) {
    Group group;
    for (group.begin = begin; group.begin < end; group.begin += kGroup) {
      group.size = std::min(kGroup, end - group.begin);
      group.find(view, queries, k);
      each(group);
    }
  });
}

}  // namespace

void recent_neighbors(BlockStore& store, const Queries& queries, const NeighborRows& out) {
  for_each_group(store, queries, out.k, [&](const Group& group) {
    for (int64_t i = 0; i < group.size; ++i) recent_row(group.dir[i], group.seen[i], group.begin + i, out);
  });
}

void uniform_neighbors(BlockStore& store, const Queries& queries, uint64_t key, const NeighborRows& out) {
  for_each_group(store, queries, out.k, [&](const Group& group) {
    for (int64_t i = 0; i < group.size; ++i) uniform_draw(group.seen[i], key, group.begin + i, out);
    for (int64_t i = 0; i < group.size; ++i) uniform_read(group.dir[i], group.seen[i], group.begin + i, out);
  });
}

}  // namespace tgflow
