// A set-associative cache of rows in device memory with CLOCK replacement. The launches do not depend on the
// ids, so that they can be captured in a graph, and nothing here waits for the host.
#include "tgflow/cuda/table_view.hpp"
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/mix.hpp"

using namespace tgflow;

using Counter = unsigned long long;

constexpr int64_t kWays = 8;  ///< Slots of a set; the last set may have fewer.

/// The cache; tgflow/graph/cache/device.py has the same fields. An id is only in the set of its hash.
struct ClockCache {
  int64_t* id;     ///< Per slot; -1: free.
  int64_t* used;   ///< Per slot: last gather that used it; 0: unused since the hand passed.
  uint8_t* hand;   ///< Per set: the next way to consider.
  Counter* claim;  ///< Per set: the gather, and its first row that the set may admit.
  const int64_t* clock;
  Counter* counts;  ///< Hits, misses, admitted, evicted, bypassed, preloaded, written.
  char* rows;
  int64_t capacity;
  int64_t row_bytes;
  int64_t stride;  ///< Bytes between rows, a multiple of 16.

  __device__ int64_t num_sets() const { return (capacity + kWays - 1) / kWays; }
  __device__ int64_t set_of(int64_t key) const {
    return static_cast<int64_t>(mix64(static_cast<uint64_t>(key)) % static_cast<uint64_t>(num_sets()));
  }
  __device__ int64_t num_ways(int64_t set) const {
    const int64_t left = capacity - set * kWays;
    return left < kWays ? left : kWays;
  }
  /// The slot of an id, or -1.
  __device__ int32_t find(int64_t key) const {
    if (capacity == 0) return -1;
    const int64_t set = set_of(key);
    for (int64_t slot = set * kWays; slot < set * kWays + num_ways(set); ++slot) {
      if (id[slot] == key) return static_cast<int32_t>(slot);
    }
    return -1;
  }
  /// The claim of row `i`: of one gather, the first row's is the largest.
  __device__ Counter claim_of(int64_t i) const {
    return static_cast<Counter>(*clock) << 32 | static_cast<uint32_t>(0xffffffff - i);
  }
  /// The slot to replace in a set: a free one, else the first unused since the hand passed.
  /// -1: this gather uses all of them.
  __device__ int64_t choose(int64_t set) const {
    const int64_t begin = set * kWays, num = num_ways(set);
    for (int64_t slot = begin; slot < begin + num; ++slot) {
      if (id[slot] < 0) return slot;
    }
    for (int64_t step = 0; step < 2 * num; ++step) {
      const int64_t slot = begin + hand[set];
      hand[set] = static_cast<uint8_t>((hand[set] + 1) % num);
      if (used[slot] == *clock) continue;
      if (used[slot] == 0) return slot;
      used[slot] = 0;
    }
    return -1;
  }
  __device__ void count(int which) const { atomicAdd(&counts[which], Counter{1}); }
};

/// Reason of a lookup; for preload and append also the index of their counter.
enum class CachePurpose : int64_t { kGather = 0, kPreload = 5, kAppend = 6 };

/// Rows to look up or to admit.
struct CacheBatch {
  const int64_t* id;
  int64_t size;
  int64_t table_size;
  const TableView* table;  ///< Source of the size where kernels read the table; else null.
  int32_t* source;         ///< Per id: the slot that holds its row, or -1.
  int32_t* admit;          ///< Per id: the slot that its row is admitted to, or -1.
  int64_t* miss;           ///< Per id: itself if read from the table, else -1.
  CachePurpose purpose;

  __device__ int64_t num_rows() const { return table == nullptr ? table_size : read_view(table).size; }
};

/// Per id: looks up its row. A miss claims its set.
extern "C" __global__ void __launch_bounds__(256) cache_look_up(ClockCache cache, CacheBatch batch) {
  const int64_t i = thread_index();
  if (i >= batch.size) return;
  const int64_t id = batch.id[i];
  batch.source[i] = batch.admit[i] = -1;
  batch.miss[i] = -1;
  if (id < 0) return;
  const bool is_there = id < batch.num_rows();
  const int32_t slot = is_there ? cache.find(id) : -1;
  batch.source[i] = slot;
  if (slot >= 0) {
    cache.used[slot] = *cache.clock;
    if (batch.purpose == CachePurpose::kGather) cache.count(0);
    return;
  }
  batch.miss[i] = id;  // the table reports an invalid id
  if (!is_there) return;
  if (batch.purpose == CachePurpose::kGather) cache.count(1);
  if (cache.capacity > 0) atomicMax(&cache.claim[cache.set_of(id)], cache.claim_of(i));
}

/// Per id: a set admits the first row that claimed it.
extern "C" __global__ void __launch_bounds__(256) cache_admit(ClockCache cache, CacheBatch batch) {
  const int64_t i = thread_index();
  if (i >= batch.size) return;
  const int64_t id = batch.miss[i];
  if (id < 0 || id >= batch.num_rows()) return;
  int64_t slot = -1;
  if (cache.capacity > 0) {
    const int64_t set = cache.set_of(id);
    if (cache.claim[set] == cache.claim_of(i)) slot = cache.choose(set);
  }
  if (slot < 0) {
    if (batch.purpose == CachePurpose::kGather) cache.count(4);
    return;
  }
  cache.count(2);
  if (cache.id[slot] >= 0) cache.count(3);
  if (batch.purpose != CachePurpose::kGather) cache.count(static_cast<int>(batch.purpose));
  cache.id[slot] = id;
  cache.used[slot] = *cache.clock;
  batch.admit[i] = static_cast<int32_t>(slot);
}

/// Copies of rows from the cache to an output, and from there to the cache.
struct CacheCopy {
  const int32_t* source;  ///< Null: no row is read.
  const int32_t* admit;   ///< Null: no row is admitted.
  int64_t size;
  char* out;
  int64_t lanes;  ///< Lanes per row: a power of two up to a warp.
};

/// Copies rows, in parts that divide their addresses. No slot is both read and written: a
/// gather never evicts what it uses.
template <typename Part>
__device__ void cache_copy(const ClockCache& cache, const CacheCopy& copy) {
  const int64_t lane = thread_index() % copy.lanes;
  const int64_t step = thread_count() / copy.lanes;
  const int64_t parts = cache.row_bytes / static_cast<int64_t>(sizeof(Part));
  for (int64_t i = thread_index() / copy.lanes; i < copy.size; i += step) {
    Part* row = reinterpret_cast<Part*>(copy.out + i * cache.row_bytes);
    const int64_t source = copy.source == nullptr ? -1 : copy.source[i];
    const int64_t admit = copy.admit == nullptr ? -1 : copy.admit[i];
    Part* held = reinterpret_cast<Part*>(cache.rows + (source >= 0 ? source : admit) * cache.stride);
    for (int64_t p = lane; p < parts; p += copy.lanes) {
      if (source >= 0) row[p] = held[p];
      if (admit >= 0) held[p] = row[p];
    }
  }
}

KERNELS_BY_PART(256, cache_copy, (ClockCache cache, CacheCopy copy), (cache, copy))
