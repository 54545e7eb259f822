// Rare work on the whole store: changes of the past, compaction and counts, one thread per node. Sharing the
// CPU's code matters more than speed.
#include "tgflow/cuda/insertion.hpp"
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/change_node.hpp"
#include "tgflow/detail/store_view.hpp"

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
  Version version;  ///< Version of every changed node, except `older`.

  TGFLOW_HD Change change(int64_t i) const {
    if (begin == nullptr) return {nullptr, 0, false, min_t, max_count};
    return {edits + begin[i], begin[i + 1] - begin[i], puts_in != 0, min_t, max_count};
  }
  TGFLOW_HD const Directory* dir(int64_t i) const { return store.latest_local(node[i]); }
  /// Whether anything can change: retention visits all nodes, and most have nothing to remove.
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

/// Plans the change of node `i`, and calls `made` for each block that it makes.
template <typename Made>
__device__ inline ChangePlanner<Made> planned(const Changing& in, int64_t i, const Made& made) {
  ChangePlanner<Made> planner(in.fresh.max_capacity, made);
  change_node(in.store, in.dir(i), in.change(i), planner);
  planner.close();
  return planner;
}

/// Per node: the demand of its new version; nothing if it does not change.
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

/// Per changed node: writes its new version, not yet published.
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

/// Per changed node: publishes it to readers whose snapshot includes the change.
extern "C" __global__ void __launch_bounds__(128) change_publish(Changing in) {
  const int64_t i = thread_index();
  if (i >= in.num_nodes || !in.changes(i)) return;
  store_release(&in.heads[in.node[i]], in.fresh.room(in.before(Changing::kUnits, i)) + 1);
}

/// A block to move.
struct Move {
  Block* block;
  place_t to;
  int64_t size;
};

/// Sums are over the nodes before.
struct Compacting {
  StoreView store;
  Directory** heads;
  int64_t* live;          ///< Per chunk: entries in pieces in use.
  const uint8_t* sparse;  ///< Per chunk: whether blocks leave it.
  int64_t* demand;        ///< [3, nodes]: moving blocks, their entries, units of directories; then sums.
  Move* moves;
  Fresh fresh;

  TGFLOW_HD int64_t before(int kind, int64_t v) const {
    return v == 0 ? 0 : demand[kind * store.num_nodes + v - 1];
  }
  /// The room that block `b` of `dir` needs if it moves: only the last one keeps spare room.
  TGFLOW_HD static int64_t room_of(const Directory* dir, uint32_t b) {
    return b + 1 < dir->num_blocks ? size_of_block(*dir, b) : capacity_of(dir->blocks()[b].place);
  }
};

/// Per node: discards its older versions. Where late events were merged, earlier cut-offs see nothing of it:
/// its entries are not in the order of their events.
extern "C" __global__ void __launch_bounds__(128) compact_past(Compacting in) {
  const int64_t v = thread_index();
  if (v >= in.store.num_nodes) return;
  Directory* dir = in.heads[v];
  if (dir == nullptr || dir->version == nullptr) return;
  if (dir->total == 0) {
    store_release(&in.heads[v], static_cast<Directory*>(nullptr));
  } else if (dir->version->merged_at == 0) {
    store_release(&dir->version, static_cast<const Version*>(nullptr));
  } else {
    auto* version = const_cast<Version*>(dir->version);
    store_release(&version->older, static_cast<const Directory*>(nullptr));
    version->changed_at = version->merged_at;
    version->change = 0;
  }
}

/// Per node: adds the used entries of each chunk.
extern "C" __global__ void __launch_bounds__(128) compact_live(Compacting in) {
  const int64_t v = thread_index();
  const Directory* dir = in.store.latest_local(v);
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    const place_t place = dir->blocks()[b].place;
    atomicAdd(reinterpret_cast<unsigned long long*>(in.live + chunk_of(place)),
              static_cast<unsigned long long>(capacity_of(place)));
  }
}

/// Per node: its demand for leaving sparse chunks, and for a directory without spare room.
extern "C" __global__ void __launch_bounds__(128) compact_count(Compacting in) {
  const int64_t v = thread_index();
  if (v >= in.store.num_nodes) return;
  const Directory* dir = in.store.latest_local(v);
  int64_t num_moves = 0, entries = 0, units = 0;
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    if (in.sparse[chunk_of(dir->blocks()[b].place)] == 0) continue;
    ++num_moves;
    entries += in.room_of(dir, b);
  }
  if (dir != nullptr) units = 1 + directory_room(dir->num_blocks) + (dir->version != nullptr);
  in.demand[v] = num_moves;
  in.demand[in.store.num_nodes + v] = entries;
  in.demand[2 * in.store.num_nodes + v] = units;
}

/// Per node: lists its blocks to move, and their targets.
extern "C" __global__ void __launch_bounds__(128) compact_list(Compacting in) {
  const int64_t v = thread_index();
  if (v >= in.store.num_nodes) return;
  Directory* dir = in.heads[v];
  Move* move = in.moves + in.before(0, v);
  int64_t offset = in.before(1, v);
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    Block& block = dir->blocks()[b];
    if (in.sparse[chunk_of(block.place)] == 0) continue;
    const int64_t room = in.room_of(dir, b);
    *move++ = {&block, in.fresh.place(offset, room), size_of_block(*dir, b)};
    offset += room;
  }
}

/// One thread block per moving block: copies its entries and redirects readers.
extern "C" __global__ void __launch_bounds__(128) compact_move(Compacting in) {
  const Move move = in.moves[blockIdx.x];
  const Entry* from = in.store.entries(*move.block);
  Entry* to = in.store.entries_at(move.to);
  for (int64_t j = threadIdx.x; j < move.size; j += blockDim.x) to[j] = from[j];
  __syncthreads();
  if (threadIdx.x == 0) store_release(&move.block->place, move.to);
}

/// Per node: copies its directory, followed by its version.
extern "C" __global__ void __launch_bounds__(128) compact_directory(Compacting in) {
  const int64_t v = thread_index();
  if (v >= in.store.num_nodes) return;
  const Directory* dir = in.heads[v];
  if (dir == nullptr) return;
  Directory* copy = in.fresh.room(in.before(2, v));
  const uint32_t max_blocks = directory_room(dir->num_blocks);
  *copy = {dir->total, dir->num_blocks, max_blocks, nullptr, 0};
  for (uint32_t b = 0; b < dir->num_blocks; ++b) copy->blocks()[b] = dir->blocks()[b];
  if (dir->version != nullptr) {
    auto* version = reinterpret_cast<Version*>(copy + 1 + max_blocks);
    *version = *dir->version;
    copy->version = version;
  }
  store_release(&in.heads[v], copy);
}

/// Seven numbers, read by `DeviceStore.stats`.
struct StoreCounts {
  unsigned long long num_blocks[2], num_entries[2], capacity[2];
  unsigned long long max_blocks;
};

/// Per node: counts its blocks by tier, without older versions.
extern "C" __global__ void __launch_bounds__(256) count_store(StoreView store, StoreCounts* counts) {
  const int64_t v = thread_index();
  const Directory* dir = store.latest_local(v);
  if (dir == nullptr) return;
  for (uint32_t b = 0; b < dir->num_blocks; ++b) {
    const Block& block = dir->blocks()[b];
    const int tier = store.tier(block.place);
    atomicAdd(&counts->num_blocks[tier], 1ull);
    atomicAdd(&counts->num_entries[tier], static_cast<unsigned long long>(size_of_block(*dir, b)));
    atomicAdd(&counts->capacity[tier], static_cast<unsigned long long>(capacity_of(block.place)));
  }
  atomicMax(&counts->max_blocks, static_cast<unsigned long long>(dir->num_blocks));
}
