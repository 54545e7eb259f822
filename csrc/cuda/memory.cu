// Reads, writes and archives versions of a node memory: one kernel per number of elements a lane copies.
#include "tgflow/cuda/thread_block.hpp"
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/version_ring.hpp"
#include "tgflow/types.hpp"

using namespace tgflow;

/// The rows of a node memory; tgflow/cuda/memory.py has the same fields.
struct MemoryColumns {
  float* row;          ///< [num_nodes, width]; or rows of a call's nodes, in order.
  int64_t is_by_node;  ///< Whether `row` is by node.
  int64_t width;
  int64_t* clock;  ///< [num_nodes, kClockWidth].
  int64_t num_nodes;
  int64_t* seen;  ///< Set to the largest node plus one.

  /// Whether the memory has a row of `node`, which is then marked as seen.
  __device__ bool sees(int64_t node) const {
    if (node < 0 || node >= num_nodes) return false;
    if (lane_index() == 0 && node >= *seen) {
      atomicMax(reinterpret_cast<unsigned long long*>(seen), static_cast<unsigned long long>(node) + 1);
    }
    return true;
  }
  __device__ float* row_of(int64_t i, int64_t node) const { return row + (is_by_node ? node : i) * width; }
};

/// Arguments of a read; tgflow/cuda/memory.py has the same fields.
struct MemoryQueries {
  const int64_t* node;
  const int64_t* position;  ///< Log position as of which a node is read.
  int64_t size;
  float* row;      ///< [size, width]; perhaps `MemoryColumns::row` itself.
  int64_t* clock;  ///< [size, kClockWidth].
};

/// Arguments of a write; tgflow/cuda/memory.py has the same fields.
struct MemoryUpdates {
  const int64_t* node;
  const int64_t* from;  ///< The row of `memory`, `mail` and `last_update` of each node; null: in order.
  int64_t size;
  const float* memory;  ///< [size, dim], the first columns of a row.
  int64_t memory_stride;
  int64_t dim;
  const float* mail;  ///< [size, width - dim], the other columns.
  int64_t mail_stride;
  const int64_t* last_update;
  const int64_t* mail_t;
  const int64_t* position;  ///< One number: log position from which the rows are valid.
  const bool* is_last;      ///< Which update of a node counts, by update; null: all do.
  const bool* is_lost;      ///< Whether to write nothing; null: write.
  int64_t* slot;            ///< [size]: slot of a row in the ring, or -1; null: no ring.
  int64_t* link;            ///< [size, kLinkWidth], between the two phases of `archive_versions`.

  __device__ bool takes_place() const { return is_lost == nullptr || !*is_lost; }
  __device__ bool counts(int64_t i) const { return takes_place() && (is_last == nullptr || is_last[i]); }
};

/// Calls `copy(i)` for the first number of every pack of a row, in one lane each.
template <int kWidth, typename Copy>
__device__ inline void for_columns(int64_t width, const Copy& copy) {
  for (int64_t i = lane_index() * kWidth; i < width; i += kWarp * kWidth) copy(i);
}

/// One warp per query: the latest version at or before its position, zeros if none is kept; NaN for a node
/// outside of the memory.
template <int kWidth>
__device__ inline void memory_read(const MemoryColumns& memory, const VersionRing& ring,
                                   const MemoryQueries& q) {
  using Numbers = Pack<kWidth>;
  for (int64_t i = warp_index(); i < q.size; i += warp_count()) {
    const int64_t node = q.node[i], position = q.position[i];
    const bool is_there = memory.sees(node);
    const float* from = nullptr;
    const int64_t* clock = nullptr;
    if (is_there && memory.clock[node * kClockWidth + kPosition] <= position) {
      from = memory.row_of(i, node);
      clock = memory.clock + node * kClockWidth;
    } else if (is_there) {
      const int64_t slot = version_slot(ring, node, position);
      if (slot != kNoVersion) from = ring.row + slot * memory.width;
      if (slot != kNoVersion) clock = ring.clock + slot * kClockWidth;
    }
    const auto none = Numbers::filled(is_there ? 0.0f : nanf(""));
    float* out = q.row + i * memory.width;
    if (from != out) {
      for_columns<kWidth>(
          memory.width, [&](int64_t c) { (from == nullptr ? none : Numbers::load(from, c)).store(out, c); });
    }
    const int lane = lane_index();
    if (lane < kClockWidth) q.clock[i * kClockWidth + lane] = clock == nullptr ? 0 : clock[lane];
  }
}

/// One thread block: assigns ring numbers to the rows that are about to be overwritten and may be read again,
/// in the order of the updates; if there are more than fit, to the last. Links them, and writes
/// all but the rows themselves. Also counts a write without nodes.
__device__ inline void archive_versions(const MemoryColumns& memory, const VersionRing& ring,
                                        const MemoryUpdates& u) {
  __shared__ int64_t sums[kWarp];
  const Share share = Share::of(u.size);
  const auto is_kept = [&](int64_t i) {
    const int64_t node = u.node[i];
    if (!u.counts(i) || node < 0 || node >= memory.num_nodes) return false;
    const int64_t version = memory.clock[node * kClockWidth + kPosition];
    return version > 0 && version < *u.position;
  };
  int64_t mine = 0, total;
  for (int64_t i = share.begin; i < share.end; ++i) mine += is_kept(i);
  const int64_t first = ring.next(), before = sum_before(mine, sums, &total);
  const int64_t left_out = total > ring.capacity ? total - ring.capacity : 0;
  int64_t rank = before;
  for (int64_t i = share.begin; i < share.end; ++i) {
    u.slot[i] = kNoVersion;
    if (!is_kept(i) || rank++ < left_out) continue;
    u.slot[i] = ring.slot_of(first + rank - 1 - left_out);
    const VersionLink link = link_after(ring, ring.head[u.node[i]]);
    int64_t* at = u.link + i * kLinkWidth;
    at[0] = link.previous, at[1] = link.far, at[2] = link.depth;
  }
  __syncthreads();  // all links are read, and may be overwritten
  rank = before;
  for (int64_t i = share.begin; i < share.end; ++i) {
    if (!is_kept(i) || rank++ < left_out) continue;
    const int64_t node = u.node[i], slot = u.slot[i];
    for (int64_t c = 0; c < kLinkWidth; ++c) ring.link[slot * kLinkWidth + c] = u.link[i * kLinkWidth + c];
    for (int64_t c = 0; c < kClockWidth; ++c) {
      ring.clock[slot * kClockWidth + c] = memory.clock[node * kClockWidth + c];
    }
    ring.origin[slot * kOriginWidth] = node;
    ring.origin[slot * kOriginWidth + 1] = ring.position();
    ring.head[node] = first + rank - 1 - left_out;
  }
  __syncthreads();  // all have read the last position
  if (threadIdx.x > 0) return;
  ring.counts[0] = first + total - left_out;
  if (u.takes_place()) ring.counts[1] = *u.position;
}

/// One warp per update: moves the old row into the ring, if it has a slot, and writes the new one.
template <int kWidth>
__device__ inline void memory_write(const MemoryColumns& memory, const VersionRing& ring,
                                    const MemoryUpdates& u) {
  using Numbers = Pack<kWidth>;
  for (int64_t i = warp_index(); i < u.size; i += warp_count()) {
    const int64_t node = u.node[i];
    if (!memory.sees(node) || !u.counts(i)) continue;
    float* row = memory.row_of(i, node);
    const int64_t from = u.from == nullptr ? i : u.from[i];
    const int64_t slot = u.slot == nullptr ? kNoVersion : u.slot[i];
    for_columns<kWidth>(memory.width, [&](int64_t c) {
      if (slot != kNoVersion) Numbers::load(row, c).store(ring.row + slot * memory.width, c);
      const auto fresh = c < u.dim ? Numbers::load(u.memory + from * u.memory_stride, c)
                                   : Numbers::load(u.mail + from * u.mail_stride, c - u.dim);
      fresh.store(row, c);
    });
    if (lane_index() > 0) continue;
    int64_t* clock = memory.clock + node * kClockWidth;
    clock[0] = u.last_update[from], clock[1] = u.mail_t[i], clock[2] = 1, clock[kPosition] = *u.position;
  }
}

KERNELS_BY_WIDTH(256, memory_read, (MemoryColumns memory, VersionRing ring, MemoryQueries queries),
                 (memory, ring, queries))
extern "C" __global__ void __launch_bounds__(1024)
    memory_archive(MemoryColumns memory, VersionRing ring, MemoryUpdates updates) {
  archive_versions(memory, ring, updates);
}
KERNELS_BY_WIDTH(256, memory_write, (MemoryColumns memory, VersionRing ring, MemoryUpdates updates),
                 (memory, ring, updates))
