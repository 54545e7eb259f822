// Memory layout of the block store, as samplers on the CPU and the GPU read it. No `std::` here.
#pragma once

#include "tgflow/detail/atomic.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

constexpr int64_t kParts = 64;  ///< Node v is in part v mod kParts; ranks own whole parts.
constexpr int64_t kNotHeld = -1;

/// The `Shard` of tgflow/base/peers.py, with the same local ids. All zeros: every node is held, and is its
/// own local id.
struct Shard {
  int64_t first_part = 0;
  int64_t num_other_parts = 0;  ///< Parts that others hold.

  TGFLOW_HD int64_t num_parts() const { return kParts - num_other_parts; }
  /// The index of `v` among the held nodes; `kNotHeld` for others and negative ones.
  TGFLOW_HD int64_t local(node_t v) const {
    const auto id = static_cast<uint64_t>(v);  // unsigned, for a cheap remainder
    const int64_t part = static_cast<int64_t>(id % kParts) - first_part;
    if (v < 0 || part < 0 || part >= num_parts()) return kNotHeld;
    return static_cast<int64_t>(id / kParts) * num_parts() + part;
  }
};

/// One neighbor in one direction: 16 bytes.
struct Entry {
  tick_t t;
  uint32_t nbr;
  uint32_t eid_offset;  ///< From the block's `base_eid`.
};

/// Location of a block's entries: its capacity, and the number of its first entry in the store's entry space,
/// which is cut into chunks. One word, so that both change at once.
using place_t = uint64_t;

constexpr int kChunkBits = 21;  ///< Most entries of a chunk: 32 MB.
constexpr int kPlaceBits = 48;

TGFLOW_HD inline place_t place_of(int64_t chunk, int64_t offset, int64_t capacity) {
  return static_cast<uint64_t>(capacity) << kPlaceBits | static_cast<uint64_t>(chunk) << kChunkBits |
         static_cast<uint64_t>(offset);
}
TGFLOW_HD inline int64_t capacity_of(place_t place) { return static_cast<int64_t>(place >> kPlaceBits); }
TGFLOW_HD inline int64_t chunk_of(place_t place) {
  return static_cast<int64_t>(place << (64 - kPlaceBits) >> (64 - kPlaceBits + kChunkBits));
}
TGFLOW_HD inline int64_t offset_of(place_t place) {
  return static_cast<int64_t>(place & ((uint64_t{1} << kChunkBits) - 1));
}

/// A run of a node's entries, ordered by (t, eid). All fields but `place` are constant once published.
struct Block {
  place_t place;   ///< Replaced when the only block grows; the old one stays readable for a while.
  eid_t base_eid;  ///< The smallest event of the block: its first, unless a late batch was merged.
  tick_t first_t;  ///< The first entry's time.
  int64_t start;   ///< Entries of the node before this block.
};

struct Version;

/// A node's blocks, oldest first; they follow this header in memory.
struct Directory {
  int64_t total;  ///< Published entries. Read it first: the blocks it counts are then readable.
  uint32_t num_blocks;
  uint32_t max_blocks;     ///< Capacity in blocks, after this header.
  const Version* version;  ///< Null for a node that only appends have changed.
  int64_t unused;          ///< A directory of one block fills one cache line.

  TGFLOW_HD Block* blocks() { return reinterpret_cast<Block*>(this + 1); }
  TGFLOW_HD const Block* blocks() const { return reinterpret_cast<const Block*>(this + 1); }
};

/// Present number of entries of block `b`: for the writer.
TGFLOW_HD inline int64_t size_of_block(const Directory& dir, int64_t b) {
  return (b + 1 < dir.num_blocks ? dir.blocks()[b + 1].start : dir.total) - dir.blocks()[b].start;
}

/// A change of a node's past. Cut-offs below `changed_at` read `older`, and so do readers whose snapshot
/// precedes the change.
struct Version {
  eid_t changed_at;
  int64_t change;          ///< The number of the change, counted from 1.
  const Directory* older;  ///< Null if the node had no entries, or that past was discarded.
  eid_t merged_at;         ///< When late events were last merged, 0 if never: they are out of order here.
};

/// View of a store for readers; valid while registered with the store's epochs.
///
/// Guarantees for readers on the device. All below the position of a reader's snapshot was written before its
/// kernel began. Concurrent additions of a writer are reached through one of five words, each stored with
/// release after all that it leads to: a head, `total`, `num_blocks`, a place, a chunk's address. `total` is
/// loaded with acquire, which also flushes the multiprocessor's cache: all entries that it counts are then
/// readable, and everything published before. The other words may be newer. Their targets cannot be
/// read before they are, and are not in the cache from before: a directory and each of its blocks fill
/// sectors of 32 bytes of their own, never read before they are published nor reused before readers are
/// done, and so does a chunk. Only a block's entries share sectors with others': so a place is also loaded
/// with acquire, unless the entries are read around that cache (`load_whole`).
struct StoreView {
  const Directory* const* heads;  ///< Per held node, by local id; null before its first entry.
  int64_t num_nodes;              ///< Number of heads.
  Entry* const* chunks;  ///< Address of each chunk: moving one to another tier is one store into this table.
  const uint8_t* tiers;  ///< Per chunk: 0 device (recent), 1 host (older).
  const uint16_t* relations = nullptr;  ///< Per event; null without relations.
  int64_t change = 0;                   ///< The last change of the past in this snapshot.
  int64_t* reads = nullptr;             ///< Per tier, neighbors read from it; null if not counted.
  Shard shard{};                        ///< Which nodes are held.

  /// Address of the latest directory of `v`; null if it has none: unknown, negative or not held.
  TGFLOW_HD const Directory* const* head_of(node_t v) const {
    const int64_t i = shard.local(v);
    return i >= 0 && i < num_nodes ? heads + i : nullptr;
  }
  /// The latest directory of `v`, or null if it has no history.
  TGFLOW_HD const Directory* latest(node_t v) const {
    const Directory* const* head = head_of(v);
    return head != nullptr ? load_dependent(head) : nullptr;
  }
  /// The latest directory of the node with local id `i`, or null.
  TGFLOW_HD const Directory* latest_local(int64_t i) const {
    return i >= 0 && i < num_nodes ? load_dependent(heads + i) : nullptr;
  }
  /// The directory for a cut-off: as of the changes up to there.
  TGFLOW_HD const Directory* directory(node_t v, eid_t before) const { return as_of(latest(v), before); }

  TGFLOW_HD const Directory* as_of(const Directory* dir, eid_t before) const {
    while (dir != nullptr && dir->version != nullptr &&
           (before < dir->version->changed_at || change < dir->version->change)) {
      dir = dir->version->older;
    }
    return dir;
  }

  TGFLOW_HD const Entry* entries(const Block& block) const { return entries_at(load_acquire(&block.place)); }
  TGFLOW_HD Entry* entries_at(place_t place) const {
    return load_dependent(chunks + chunk_of(place)) + offset_of(place);
  }
  TGFLOW_HD int tier(place_t place) const { return load_dependent(tiers + chunk_of(place)); }
  /// Counts `size` neighbors read from `block`. On the device every thread has its own counts.
  TGFLOW_HD void count_reads(const Block& block, int64_t size) const {
    if (reads == nullptr) return;
#ifdef __CUDA_ARCH__
    reads[tier(load_dependent(&block.place))] += size;
#else
    add_relaxed(reads + tier(load_dependent(&block.place)), size);
#endif
  }
};

/// Neighborhoods to look up: entries with `t < t[i]` and `eid < limit(i)`, and not outside the horizon.
struct Queries {
  const node_t* node;
  const tick_t* t;
  const eid_t* before;  ///< Per query, or null.
  eid_t before_all;     ///< For every query.
  int64_t size;
  const int64_t* row = nullptr;  ///< Row of each query in a larger call, for its draws; null: its own.
  Since since{};

  TGFLOW_HD eid_t limit(int64_t i) const {
    return before != nullptr && before[i] < before_all ? before[i] : before_all;
  }
  TGFLOW_HD int64_t row_of(int64_t i) const { return row != nullptr ? row[i] : i; }
};

/// Output of sampling: `k` slots per query, and the number of filled ones.
struct NeighborRows {
  node_t* node;
  tick_t* t;
  eid_t* eid;
  int32_t* count;
  int64_t k;
};

enum class Strategy : int32_t {
  kRecent,   ///< The newest.
  kUniform,  ///< Uniform.
  kWindow,   ///< Uniform in [t - span, t).
  kDecayed,  ///< Weight halved per `span` of age.
};

struct Sampler {
  Strategy strategy = Strategy::kRecent;
  uint64_t key = 0;                     ///< Of the draws; unused by `kRecent`.
  int64_t span = 1;                     ///< In ticks, at least 1.
  const uint64_t* relations = nullptr;  ///< Per relation a bit: whether its events count. Null: all do.

  /// Whether `entry`, of a block with this base, counts. Requires `relations`.
  TGFLOW_HD bool keeps(const StoreView& store, const Entry& entry, eid_t base_eid) const {
    const uint32_t relation = store.relations[base_eid + entry.eid_offset];
    return (relations[relation >> 6] >> (relation & 63) & 1) != 0;
  }
};

/// The entries of a directory that a query sees: numbers [first, count), the last of them in block `block`.
struct Visible {
  int64_t count;
  int64_t block;
  int64_t first = 0;

  TGFLOW_HD int64_t size() const { return count - first; }
};

/// End of a directory: entry number `total - 1`, in block `last`; total 0 without entries.
struct Tail {
  int64_t total;
  int64_t last;
  const Entry* newest;
};

/// Rules of which entries, a prefix of every directory, searches find.
struct Earlier {  ///< Than a query's time and its cut-off.
  TGFLOW_HD static bool holds(tick_t entry_t, eid_t eid, tick_t t, eid_t before) {
    return (entry_t < t) & (eid < before);
  }
};
struct Outside {  ///< The horizon.
  TGFLOW_HD static bool holds(tick_t entry_t, eid_t eid, tick_t t, eid_t before) {
    return (entry_t < t) | ((entry_t == t) & (eid < before));
  }
};

template <typename Rule>
TGFLOW_HD inline bool holds(const Block& block, tick_t t, eid_t before) {
  return Rule::holds(block.first_t, block.base_eid, t, before);
}

/// The present tail; `dir` may be null.
TGFLOW_HD inline Tail tail_of(const StoreView& store, const Directory* dir) {
  const int64_t total = dir == nullptr ? 0 : load_acquire(&dir->total);
  if (total == 0) return {0, 0, nullptr};
  int64_t last = static_cast<int64_t>(load_dependent(&dir->num_blocks)) - 1;
  const Block* blocks = dir->blocks();
  while (last > 0 && blocks[last].start >= total) --last;  // published before its entries
  return {total, last, store.entries(blocks[last]) + (total - 1 - blocks[last].start)};
}

/// A binary search for the last visible item, where the first one is visible: it is in [low, low + size).
/// Branch-free, since the outcome of a probe is unpredictable.
template <typename Item>
struct Search {
  const Item* low;
  int64_t size;

  TGFLOW_HD const Item* probe() const { return low + (size >> 1); }
  TGFLOW_HD void narrow(bool seen) {
    low = seen ? probe() : low;
    size -= size >> 1;
  }
};

/// The entries of block `b`, of a directory with this tail.
TGFLOW_HD inline Search<Entry> entries_of(const StoreView& store, const Block* blocks, int64_t b,
                                          const Tail& tail) {
  const int64_t end = b == tail.last ? tail.total : blocks[b + 1].start;
  return {store.entries(blocks[b]), end - blocks[b].start};
}

/// Finds the entries of `dir` (may be null) for which `Rule` holds, of time `t` and position `before`.
template <typename Rule = Earlier>
TGFLOW_HD inline Visible find_prefix(const StoreView& store, const Directory* dir, tick_t t, eid_t before) {
  const Tail tail = tail_of(store, dir);
  if (tail.total == 0) return {0, 0};
  const Block* blocks = dir->blocks();
  if (Rule::holds(tail.newest->t, blocks[tail.last].base_eid + tail.newest->eid_offset, t, before)) {
    return {tail.total, tail.last};
  }
  if (!holds<Rule>(blocks[0], t, before)) return {0, 0};
  Search<Block> block{blocks, tail.last + 1};
  while (block.size > 1) block.narrow(holds<Rule>(*block.probe(), t, before));
  Search<Entry> entry = entries_of(store, blocks, block.low - blocks, tail);
  const Entry* first = entry.low;
  const int64_t limit = before - block.low->base_eid;
  while (entry.size > 1) {
    entry.narrow(Rule::holds(entry.probe()->t, entry.probe()->eid_offset, t, limit));
  }
  return {block.low->start + (entry.low - first) + 1, block.low - blocks};
}

/// The entries of `dir` (may be null) that query `i` sees.
TGFLOW_HD inline Visible find_visible(const StoreView& store, const Directory* dir, const Queries& queries,
                                      int64_t i) {
  Visible seen = find_prefix(store, dir, queries.t[i], queries.limit(i));
  if (seen.count == 0 || queries.since.is_all()) return seen;
  const int64_t first = find_prefix<Outside>(store, dir, queries.since.t, queries.since.eid).count;
  seen.first = first < seen.count ? first : seen.count;
  return seen;
}

/// The last of `blocks[0, size)` that starts at or before entry number `number`.
TGFLOW_HD inline int64_t block_of(const Block* blocks, int64_t size, int64_t number) {
  int64_t low = 0;
  while (size > 1) {
    const int64_t half = size >> 1;
    low += -static_cast<int64_t>(blocks[low + half].start <= number) & half;
    size -= half;
  }
  return low;
}

/// Whether `dir`, which may be null, has the block at `place`.
TGFLOW_HD inline bool holds(const Directory* dir, place_t place) {
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    if (dir->blocks()[b].place == place) return true;
  }
  return false;
}

}  // namespace tgflow
