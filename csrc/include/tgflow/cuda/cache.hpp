// A cache of rows on the device: index, order and rows. Device code alone.
#pragma once

#include "tgflow/cuda/table_view.hpp"
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/cache_policy.hpp"
#include "tgflow/detail/mix.hpp"

namespace tgflow {

constexpr int32_t kEmptyEntry = -1;
constexpr int32_t kGoneEntry = -2;  ///< What was there has left; look-ups go on behind it.

// Where a row comes from, beside the slots from 0 on; -4 - i: from row `i` of the answer.
constexpr int32_t kZeroRow = -1;
constexpr int32_t kTableRow = -2;

constexpr int64_t kUsesShift = 48;  ///< Of a key: below the uses.
constexpr int64_t kMostUses = 255;
constexpr int64_t kStays = 0x7fffffffffffffff;  ///< The key of a slot that may not make room.

/// What changes with every gather, so that a captured one finds it as it is when it is replayed.
struct CacheProgress {
  int64_t clock;       ///< The next position: each gather takes two an id.
  int64_t inserted;    ///< Into the index since it was rebuilt, at most.
  int64_t is_rebuilt;  ///< Whether it is being rebuilt.
  int64_t head;        ///< Of the queue: its oldest entry,
  int64_t tail;        ///< the end of its newest ones,
  int64_t appended;    ///< and where those of the gather under way begin.
};

/// Slots in the order in which they make room, under lru and fifo: a ring of entries, each with the stamp
/// that its slot had when it was appended. An entry is current while the slot has that stamp; each slot has
/// one current entry, free slots the oldest.
struct CacheQueue {
  int32_t* slot;
  int64_t* stamp;
  int64_t mask;  ///< Of the numbers of entries: room for twice as many as there are slots, or more.
};

/// As tgflow/cache/device_index.py has it, field by field. At most half of the entries are of slots, and
/// entries that are gone are cleared before they are too many.
struct DeviceCache {
  int32_t* entry;  ///< Open addressing: slots by the hash of their ids.
  int64_t mask;
  int64_t* id;  ///< Per slot, -1 for none.
  int64_t* used;
  int64_t* came;
  uint8_t* uses;
  int64_t capacity;
  CachePolicy policy;
  char* rows;
  int64_t row_bytes;
  int64_t stride;  ///< Of rows, a multiple of 16.
  CacheProgress* progress;
  CacheQueue queue;

  __device__ CacheTraits traits() const { return traits_of(policy); }
  __device__ bool has_queue() const { return !traits().counts_uses && !traits().is_given; }
  /// What a slot's current entry in the queue has.
  __device__ int64_t stamp(int32_t slot) const { return traits().by_use ? used[slot] : came[slot]; }
  /// Whether the index must be rebuilt before `num_more` are inserted, or else too many entries are gone.
  __device__ bool is_full(int64_t num_more) const {
    return capacity + progress->inserted + num_more > 3 * (mask + 1) / 4;
  }
  __device__ int64_t home(int64_t key) const {
    return static_cast<int64_t>(mix64(static_cast<uint64_t>(key))) & mask;
  }
  __device__ int32_t find(int64_t key) const {
    for (int64_t i = home(key);; i = (i + 1) & mask) {
      const int32_t slot = entry[i];
      if (slot == kEmptyEntry || (slot >= 0 && id[slot] == key)) return slot;
    }
  }
  /// Many threads insert at once, each another id; they take empty entries alone.
  __device__ void insert(int64_t key, int32_t slot) const {
    for (int64_t i = home(key); atomicCAS(&entry[i], kEmptyEntry, slot) != kEmptyEntry;) i = (i + 1) & mask;
  }
  /// Others may insert and erase meanwhile.
  __device__ void erase(int64_t key, int32_t slot) const {
    int64_t i = home(key);
    while (entry[i] != slot) i = (i + 1) & mask;
    entry[i] = kGoneEntry;
  }
  /// Writes entry `number` of the queue: a slot with its stamp of now.
  __device__ void append(int64_t number, int32_t slot) const {
    queue.slot[number & queue.mask] = slot;
    queue.stamp[number & queue.mask] = stamp(slot);
  }
  /// What makes room first where there is no queue: free slots, then the smallest key.
  __device__ int64_t key(int64_t slot, int64_t begin) const {
    if (id[slot] < 0) return slot - capacity;
    if (used[slot] >= begin) return kStays;
    if (traits().counts_uses) return static_cast<int64_t>(uses[slot]) << kUsesShift | used[slot];
    return came[slot];
  }
};

/// Who wants the rows: a gather; nobody yet; or nobody yet, and the table has just been given them.
enum class CachePurpose : int64_t { kGather, kPreload, kAppend };

/// One gather, or rows that come in unasked.
struct CacheBatch {
  const int64_t* id;
  int64_t size;
  int64_t table_size;
  const TableView* table;  ///< What says it instead, where kernels read the table; else null.
  int64_t num_more;        ///< Rows that it may insert.
  int32_t* claimed;        ///< Open addressing: the first of equal ids by their hash, -1 for none.
  int64_t claim_mask;
  int32_t* place;  ///< Per id: its entry there.
  int32_t* source;
  int64_t* miss;   ///< Per id: what the table is asked for, -1 for nothing.
  int32_t* found;  ///< [2, size] whether it is a hit, whether a miss; then summed up, row by row.
  int32_t* admit;  ///< Per id: the slot that its row goes to, -1 for none.
  int64_t* room;   ///< Slots in the order in which they make room, as many as rows may come.
  int64_t admits;  ///< 0: none; 1: into `room`; 2: as `admit` says already.
  CachePurpose purpose;
  int64_t* counts;  ///< As tgflow/cache/device.py names them.

  __device__ int64_t num_rows() const { return table == nullptr ? table_size : read_view(table).size; }
  /// Its first position on the cache's clock, which it has advanced; rows admitted rank from `size` behind
  /// it.
  __device__ int64_t begin(const DeviceCache& cache) const { return cache.progress->clock - 2 * size; }
  __device__ int64_t num_hits() const { return found[size - 1]; }
  __device__ int64_t num_misses() const { return found[2 * size - 1] - found[size - 1]; }
  __device__ bool is_hit(int64_t i) const { return found[i] > (i == 0 ? 0 : found[i - 1]); }
  /// How many misses come before miss `i`.
  __device__ int64_t miss_rank(int64_t i) const { return found[size + i] - 1 - found[size - 1]; }
  /// How many misses there is room for: all slots but those that are used now.
  __device__ int64_t num_fitting(const DeviceCache& cache) const {
    const int64_t others = cache.capacity - num_hits();
    return num_misses() < others ? num_misses() : others;
  }
};

/// Rows from the cache to an answer, and from there to the cache.
struct CacheCopy {
  const int32_t* source;  ///< Null: no row is read.
  const int32_t* admit;   ///< Null: no row is put.
  int64_t size;
  char* out;
  int64_t lanes;  ///< That share a row: a power of two up to a warp.
};

}  // namespace tgflow
