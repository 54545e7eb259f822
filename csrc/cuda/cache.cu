// A cache's look-ups, admissions and copies. The launches do not depend on what is asked for, nor on what was
// asked before, so that they can be captured in a graph, and nothing here waits for the host; sums, and
// under lfu the choice of who makes room, are torch's, between the launches.
#include "tgflow/cuda/cache_queue.hpp"

using namespace tgflow;

/// Per entry: clears it if the index has no room for `num_more`.
extern "C" __global__ void __launch_bounds__(256) cache_clear(DeviceCache cache, int64_t num_more) {
  if (!cache.is_full(num_more)) return;
  if (thread_index() == 0) cache.progress->is_rebuilt = 1;
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = thread_index(); i <= cache.mask; i += step) cache.entry[i] = kEmptyEntry;
}

/// Per slot: puts it into the index if that was cleared.
extern "C" __global__ void __launch_bounds__(256) cache_index(DeviceCache cache) {
  if (cache.progress->is_rebuilt == 0) return;
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t slot = thread_index(); slot < cache.capacity; slot += step) {
    if (cache.id[slot] >= 0) cache.insert(cache.id[slot], static_cast<int32_t>(slot));
  }
}

/// Begins a gather. Per id: finds its entry among the ids of this gather, which comes to hold the first of
/// equal ones.
extern "C" __global__ void __launch_bounds__(256) cache_claim(DeviceCache cache, CacheBatch batch) {
  const int64_t i = thread_index();
  if (i == 0) {
    cache.progress->clock += 2 * batch.size;
    if (cache.progress->is_rebuilt != 0) cache.progress->inserted = cache.progress->is_rebuilt = 0;
    cache.progress->inserted += batch.num_more;
  }
  if (i >= batch.size || batch.id[i] < 0) return;
  const int32_t mine = static_cast<int32_t>(i);
  int64_t at = static_cast<int64_t>(mix64(static_cast<uint64_t>(batch.id[i]))) & batch.claim_mask;
  for (;; at = (at + 1) & batch.claim_mask) {
    const int32_t other = atomicCAS(&batch.claimed[at], -1, mine);
    if (other == -1) break;
    if (batch.id[other] != batch.id[i]) continue;
    atomicMin(&batch.claimed[at], mine);
    break;
  }
  batch.place[i] = static_cast<int32_t>(at);
}

/// Per id: where its row comes from; the first of equal ones uses what it finds.
extern "C" __global__ void __launch_bounds__(256) cache_look_up(DeviceCache cache, CacheBatch batch) {
  const int64_t i = thread_index();
  if (i >= batch.size) return;
  const int64_t id = batch.id[i];
  batch.found[i] = batch.found[batch.size + i] = 0;
  batch.miss[i] = -1;
  batch.source[i] = kZeroRow;
  const int64_t num_rows = batch.num_rows();
  if (id >= num_rows) batch.miss[i] = id;  // the table says so
  if (id < 0 || id >= num_rows) return;
  const int32_t first = batch.claimed[batch.place[i]];
  const int32_t slot = cache.find(id);
  batch.source[i] = slot >= 0 ? slot : first == i ? kTableRow : -4 - first;
  if (first != i) return;
  batch.found[slot >= 0 ? i : batch.size + i] = 1;
  if (slot < 0) {
    batch.miss[i] = id;
    return;
  }
  cache.used[slot] = batch.begin(cache) + i;
  if (cache.traits().counts_uses && cache.uses[slot] < kMostUses) ++cache.uses[slot];
}

/// One thread block: finds the slots that make room for the misses, oldest entries of the queue first, and
/// takes them from it. Walks over what this and earlier gathers have appended, each entry about once.
extern "C" __global__ void __launch_bounds__(512) cache_choose(DeviceCache cache, CacheBatch batch) {
  CacheQueueWalk walk(cache);
  walk.make_room(batch.num_more);
  walk.take(batch.num_fitting(cache), batch.begin(cache), batch.room);
  walk.finish(batch.num_fitting(cache) + (cache.has_queue() && cache.traits().by_use ? batch.num_hits() : 0));
}

/// Per slot: its key.
extern "C" __global__ void __launch_bounds__(256)
    cache_keys(DeviceCache cache, CacheBatch batch, int64_t* key) {
  const int64_t slot = thread_index();
  if (slot < cache.capacity) key[slot] = cache.key(slot, batch.begin(cache));
}

/// Counts a gather: hits, misses, admitted, evicted, bypassed, preloaded, written; then how many rows are
/// held and have ever been admitted, before and after.
__device__ inline void count(const DeviceCache& cache, const CacheBatch& batch, int64_t admitted) {
  const int64_t hits = batch.num_hits(), misses = batch.num_misses();
  int64_t* counts = batch.counts;
  const int64_t free = cache.capacity - counts[7];
  const int64_t evicted = admitted > free ? admitted - free : 0;
  if (batch.purpose == CachePurpose::kGather) {
    counts[0] += hits;
    counts[1] += misses;
    counts[4] += misses - admitted;
  } else {
    counts[batch.purpose == CachePurpose::kPreload ? 5 : 6] += admitted;
  }
  counts[2] += admitted;
  counts[3] += evicted;
  counts[7] += admitted - evicted;
  counts[8] = counts[9];
  counts[9] += admitted;
}

/// Per id: if its row is admitted, whose place it takes. A preload asks the table for no other rows.
extern "C" __global__ void __launch_bounds__(256) cache_admit(DeviceCache cache, CacheBatch batch) {
  const int64_t i = thread_index();
  if (i >= batch.size) return;
  const int64_t admitted = batch.admits == 1 ? batch.num_fitting(cache) : 0;
  if (i == 0 && batch.admits != 2) count(cache, batch, admitted);
  const bool is_queued = batch.admits == 1 && cache.has_queue();
  int64_t entry = cache.progress->appended;
  if (is_queued && cache.traits().by_use) {
    if (batch.is_hit(i)) cache.append(entry + batch.found[i] - 1, batch.source[i]);
    entry += batch.num_hits();
  }
  int32_t slot = batch.admits == 2 ? batch.admit[i] : -1;
  if (batch.source[i] == kTableRow && batch.admits == 1) {
    const int64_t rank = batch.miss_rank(i);
    if (rank < admitted) slot = static_cast<int32_t>(batch.room[rank]);
    entry += rank;
  }
  batch.admit[i] = slot;
  if (slot < 0) return;
  if (cache.id[slot] >= 0) cache.erase(cache.id[slot], slot);
  cache.id[slot] = batch.id[i];
  cache.used[slot] = cache.came[slot] = batch.begin(cache) + batch.size + i;
  if (is_queued) cache.append(entry, slot);
  if (cache.traits().counts_uses) cache.uses[slot] = 1;
  cache.insert(batch.id[i], slot);
}

/// Per slot: halves its uses if admissions have passed a multiple of `period`.
extern "C" __global__ void __launch_bounds__(256)
    cache_age(DeviceCache cache, const int64_t* counts, int64_t period) {
  const int64_t slot = thread_index();
  if (slot < cache.capacity && counts[9] / period > counts[8] / period) cache.uses[slot] /= 2;
}

/// Per id: its slot, or -1.
extern "C" __global__ void __launch_bounds__(256)
    cache_find(DeviceCache cache, const int64_t* id, int64_t size, int32_t* slot) {
  const int64_t i = thread_index();
  if (i < size) slot[i] = cache.find(id[i]);
}

/// Rows, in parts that their addresses are multiples of. A row that is admitted is not read from a slot, and
/// no slot is both read and written unless there are two launches.
template <typename Part>
__device__ void copy_rows(const DeviceCache& cache, const CacheCopy& copy) {
  const int64_t lane = thread_index() % copy.lanes;
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x) / copy.lanes;
  const int64_t parts = cache.row_bytes / static_cast<int64_t>(sizeof(Part));
  for (int64_t i = thread_index() / copy.lanes; i < copy.size; i += step) {
    Part* row = reinterpret_cast<Part*>(copy.out + i * cache.row_bytes);
    const int32_t source = copy.source == nullptr ? kTableRow : copy.source[i];
    const int32_t slot = copy.admit == nullptr ? -1 : copy.admit[i];
    if (source != kTableRow) {
      const char* from = source >= 0    ? cache.rows + source * cache.stride
                         : source <= -4 ? copy.out + (-4 - source) * cache.row_bytes
                                        : nullptr;
      const Part* read = reinterpret_cast<const Part*>(from);
      for (int64_t p = lane; p < parts; p += copy.lanes) row[p] = read == nullptr ? Part{} : read[p];
    }
    if (slot < 0) continue;
    Part* held = reinterpret_cast<Part*>(cache.rows + slot * cache.stride);
    for (int64_t p = lane; p < parts; p += copy.lanes) held[p] = row[p];
  }
}

extern "C" __global__ void __launch_bounds__(256) cache_copy_by_16(DeviceCache cache, CacheCopy copy) {
  copy_rows<longlong2>(cache, copy);
}
extern "C" __global__ void __launch_bounds__(256) cache_copy_by_8(DeviceCache cache, CacheCopy copy) {
  copy_rows<uint64_t>(cache, copy);
}
extern "C" __global__ void __launch_bounds__(256) cache_copy_by_4(DeviceCache cache, CacheCopy copy) {
  copy_rows<uint32_t>(cache, copy);
}
extern "C" __global__ void __launch_bounds__(256) cache_copy_by_2(DeviceCache cache, CacheCopy copy) {
  copy_rows<uint16_t>(cache, copy);
}
extern "C" __global__ void __launch_bounds__(256) cache_copy_by_1(DeviceCache cache, CacheCopy copy) {
  copy_rows<uint8_t>(cache, copy);
}
