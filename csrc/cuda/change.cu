// Changes of the past on the GPU, one thread a node: count what the new versions need, and, once the host has
// seen to the memory, write them. Rare, so that being the CPU's code matters more than speed.
#include "tgflow/cuda/insertion.hpp"
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/change_node.hpp"

using namespace tgflow;

/// One item per node that may change, a node's edits next to each other. Sums are over the nodes before.
struct Changing {
  StoreView store;
  Directory** heads;
  int64_t num_nodes;
  const node_t* node;  ///< By local id.
  const Edit* edits;
  const int64_t* begin;  ///< Per node, and the end; null without edits.
  int64_t puts_in;
  tick_t min_t;
  int64_t max_count;
  int64_t* demand;  ///< [4, num_nodes]: blocks, entries, units of directories, entries gained; then sums.
  NewBlock* blocks;
  Fresh fresh;
  Version version;  ///< Of every changed node, but for `older`.

  TGFLOW_HD Change change(int64_t i) const {
    if (begin == nullptr) return {nullptr, 0, false, min_t, max_count};
    return {edits + begin[i], begin[i + 1] - begin[i], puts_in != 0, min_t, max_count};
  }
  TGFLOW_HD const Directory* dir(int64_t i) const { return store.latest_local(node[i]); }
  /// Whether anything can change: forgetting looks at all nodes, and most have nothing to forget.
  TGFLOW_HD bool may_change(int64_t i) const {
    if (begin != nullptr) return true;
    const Directory* directory = dir(i);
    return directory != nullptr && directory->num_blocks != 0 &&
           num_forgotten(store, directory, change(i)) > 0;
  }
  TGFLOW_HD int64_t before(int kind, int64_t i) const {
    return i == 0 ? 0 : demand[kind * num_nodes + i - 1];
  }
  TGFLOW_HD bool changes(int64_t i) const { return demand[kUnits * num_nodes + i] != before(kUnits, i); }

  static constexpr int kBlocks = 0, kEntries = 1, kUnits = 2, kGained = 3;
};

/// Plans the change of node `i`, and tells `made` of each block that it makes.
template <typename Made>
__device__ inline ChangePlanner<Made> planned(const Changing& in, int64_t i, const Made& made) {
  ChangePlanner<Made> planner(in.fresh.max_capacity, made);
  change_node(in.store, in.dir(i), in.change(i), planner);
  planner.close();
  return planner;
}

/// Per node: what its new version needs; nothing where it stays as it is.
extern "C" __global__ void __launch_bounds__(128) change_count(Changing in) {
  const int64_t i = thread_index();
  if (i >= in.num_nodes) return;
  int64_t num_new = 0, entries = 0, units = 0, gained = 0;
  if (in.may_change(i)) {
    int64_t last_size = 0;
    const auto made = [&](const NewBlock& block) {
      ++num_new;
      entries += block.size;
      last_size = block.size;
    };
    const auto planner = planned(in, i, made);
    const Directory* dir = in.dir(i);
    gained = planner.total - (dir == nullptr ? 0 : dir->total);
    if (gained == 0) {
      num_new = entries = 0;
    } else {
      units = 2 + static_cast<int64_t>(directory_room(planner.num_blocks));
      if (!planner.ends_shared) {
        entries += tail_capacity(last_size, planner.total, in.fresh.max_capacity) - last_size;
      }
    }
  }
  in.demand[Changing::kBlocks * in.num_nodes + i] = num_new;
  in.demand[Changing::kEntries * in.num_nodes + i] = entries;
  in.demand[Changing::kUnits * in.num_nodes + i] = units;
  in.demand[Changing::kGained * in.num_nodes + i] = gained;
}

/// Per node that changes: its new version, which nobody sees yet.
extern "C" __global__ void __launch_bounds__(128) change_write(Changing in, place_t* places) {
  const int64_t i = thread_index();
  if (i >= in.num_nodes || !in.changes(i)) return;
  NewBlock* blocks = in.blocks + in.before(Changing::kBlocks, i);
  places += in.before(Changing::kBlocks, i);
  int64_t num_new = 0;
  const auto made = [&](const NewBlock& block) { blocks[num_new++] = block; };
  const auto planner = planned(in, i, made);
  int64_t offset = in.before(Changing::kEntries, i);
  for (int64_t b = 0; b < num_new; ++b) {
    const bool is_tail = !planner.ends_shared && b + 1 == num_new;
    const int64_t capacity =
        is_tail ? tail_capacity(blocks[b].size, planner.total, in.fresh.max_capacity) : blocks[b].size;
    places[b] = in.fresh.place(offset, capacity);
    offset += capacity;
  }
  Directory* room = in.fresh.room(in.before(Changing::kUnits, i));
  auto* version = reinterpret_cast<Version*>(room);
  const Directory* dir = in.dir(i);
  const eid_t merged_at = dir == nullptr || dir->version == nullptr ? 0 : dir->version->merged_at;
  *version = {in.version.changed_at, in.version.change, dir,
              in.puts_in != 0 ? in.version.changed_at : merged_at};
  Directory* changed = room + 1;
  *changed = {0, 0, directory_room(planner.num_blocks), version, 0};
  ChangeWriter writer(in.store, changed, blocks, places);
  change_node(in.store, dir, in.change(i), writer);
}

/// Per node that changes: lets readers see it, those whose snapshot knows of the change.
extern "C" __global__ void __launch_bounds__(128) change_publish(Changing in) {
  const int64_t i = thread_index();
  if (i >= in.num_nodes || !in.changes(i)) return;
  store_release(&in.heads[in.node[i]], in.fresh.room(in.before(Changing::kUnits, i)) + 1);
}
