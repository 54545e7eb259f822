// Compaction on the GPU: pasts are given up, blocks leave sparse chunks, directories move together.
#include "tgflow/cuda/insertion.hpp"
#include "tgflow/cuda/tile.hpp"

using namespace tgflow;

/// A block that moves.
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
  /// The room that block `b` of `dir` needs where it moves: what follows it is full.
  TGFLOW_HD static int64_t size_of(const Directory* dir, uint32_t b) {
    return (b + 1 < dir->num_blocks ? dir->blocks()[b + 1].start : dir->total) - dir->blocks()[b].start;
  }
  TGFLOW_HD static int64_t room_of(const Directory* dir, uint32_t b) {
    return b + 1 < dir->num_blocks ? size_of(dir, b) : capacity_of(dir->blocks()[b].place);
  }
};

/// Per node: forgets its older versions. Where events were merged in late, cut-offs before see nothing of it:
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

/// Per node: adds up what is in use of each chunk.
extern "C" __global__ void __launch_bounds__(128) compact_live(Compacting in) {
  const int64_t v = thread_index();
  const Directory* dir = in.store.latest_local(v);
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    const place_t place = dir->blocks()[b].place;
    atomicAdd(reinterpret_cast<unsigned long long*>(in.live + chunk_of(place)),
              static_cast<unsigned long long>(capacity_of(place)));
  }
}

/// Per node: what it needs to leave sparse chunks, and for a directory without spare room.
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

/// Per node: lists its blocks that move, and where to.
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
    *move++ = {&block, in.fresh.place(offset, room), in.size_of(dir, b)};
    offset += room;
  }
}

/// Per moving block, a thread block: copies its entries and lets readers follow.
extern "C" __global__ void __launch_bounds__(128) compact_move(Compacting in) {
  const Move move = in.moves[blockIdx.x];
  const Entry* from = in.store.entries(*move.block);
  Entry* to = in.store.entries_at(move.to);
  for (int64_t j = threadIdx.x; j < move.size; j += blockDim.x) to[j] = from[j];
  __syncthreads();
  if (threadIdx.x == 0) store_release(&move.block->place, move.to);
}

/// Per node: copies its directory, and its version behind it.
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
