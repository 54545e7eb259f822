// Deduplicates frontiers and lists of events: rows are numbered by first appearance, as in the sequential
// csrc/src/frontier.cpp. A hash table, filled with `kUnclaimed` before, finds the first of equal items for
// any order of threads; prefix sums by torch number the first ones. The host has only the shapes.
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/frontier_query.hpp"

using namespace tgflow;

constexpr int32_t kUnclaimed = -1;

/// Items to deduplicate: targets, then slots; a target's slots inherit its position. Targets from `*num_used`
/// on and empty slots are missing. Events are slots without targets. tgflow/cuda/frontier.py has the same
/// fields.
struct FrontierItems {
  const node_t* node;       ///< [num_targets]
  const tick_t* t;          ///< [num_targets]
  const int64_t* position;  ///< [num_targets], or null: not compared.
  const int64_t* num_used;  ///< Null: all targets are used.
  int64_t num_targets;
  const node_t* slot_node;  ///< [num_slots]
  const tick_t* slot_t;     ///< [num_slots], or null, as `position`
  int64_t num_slots;
  int64_t k;        ///< Slots per target.
  int64_t by_time;  ///< Whether items are compared by time.

  __device__ int64_t size() const { return num_targets + num_slots; }

  __device__ bool is_there(int64_t i) const {
    if (i >= num_targets) return slot_node[i - num_targets] != kNoNode;
    return num_used == nullptr || i < *num_used;
  }

  __device__ FrontierQuery query(int64_t i) const {
    const int64_t slot = i - num_targets;
    const int64_t target = slot < 0 ? i : slot / k;
    const tick_t when = by_time == 0 ? 0 : slot < 0 ? t[i] : slot_t[slot];
    return {slot < 0 ? node[i] : slot_node[slot], when, position == nullptr ? 0 : position[target]};
  }
};

/// The first of equal items: a hash table of items.
struct FrontierClaims {
  int32_t* first;   ///< [mask + 1], `kUnclaimed` before; then the first of equal items.
  int64_t mask;     ///< At least twice as many places as items, less one.
  int32_t* place;   ///< [size]: place in `first` of an item's equals.
  int32_t* number;  ///< [size]: whether an item is a first one; then the prefix sum.

  __device__ int32_t first_of(int64_t i) const { return first[place[i]]; }
};

/// Output of distinct rows, after `base` rows that stand for missing ones.
struct FrontierRows {
  node_t* node;       ///< [base + size]; `kNoNode` beyond the rows in use, zeros in the next two.
  tick_t* t;          ///< [base + size], or null
  int64_t* position;  ///< [base + size], or null
  int64_t base;       ///< 0 or 1.
  int64_t* num_used;  ///< Set to the number of rows in use.
  int64_t* row;       ///< [size]: row of each item; 0 for missing ones.
  bool* mask;         ///< [num_slots], or null: whether a slot is filled.
  float* dt;          ///< [num_slots], or null: seconds from a slot's time to its target's.
  double seconds_per_tick;

  __device__ void write(int64_t to, const FrontierQuery& query) const {
    node[to] = query.node;
    if (t != nullptr) t[to] = query.t;
    if (position != nullptr) position[to] = query.position;
  }
};

/// Per item: finds the place of its equals, and stores the first of them there.
extern "C" __global__ void __launch_bounds__(256) frontier_claim(FrontierItems items, FrontierClaims claims) {
  const int64_t i = thread_index();
  if (i >= items.size() || !items.is_there(i)) return;
  const int32_t mine = static_cast<int32_t>(i);
  const FrontierQuery query = items.query(i);
  int64_t at = static_cast<int64_t>(hash_of(query)) & claims.mask;
  for (;; at = (at + 1) & claims.mask) {
    const int32_t other = atomicCAS(&claims.first[at], kUnclaimed, mine);
    if (other == kUnclaimed) break;
    if (!(items.query(other) == query)) continue;
    if (other > mine) atomicMin(&claims.first[at], mine);  // it only decreases
    break;
  }
  claims.place[i] = static_cast<int32_t>(at);
}

/// Per item: whether it is the first of its equals.
extern "C" __global__ void __launch_bounds__(256) frontier_flag(FrontierItems items, FrontierClaims claims) {
  const int64_t i = thread_index();
  if (i >= items.size()) return;
  claims.number[i] = items.is_there(i) && claims.first_of(i) == i ? 1 : 0;
}

/// Per item, after the prefix sum of `number`: its row, the row itself if it is the first, the mask and dt
/// of a slot; and the padding after the rows in use.
extern "C" __global__ void __launch_bounds__(256)
    frontier_write(FrontierItems items, FrontierClaims claims, FrontierRows rows) {
  const int64_t i = thread_index(), size = items.size();
  if (i >= size) return;
  const int64_t num_distinct = claims.number[size - 1];
  if (i == 0) *rows.num_used = rows.base + num_distinct;
  if (i < rows.base) rows.write(i, {kNoNode, 0, 0});
  if (i >= num_distinct) rows.write(rows.base + i, {kNoNode, 0, 0});
  const bool is_there = items.is_there(i);
  int64_t row = 0;
  if (is_there) {
    const int32_t first = claims.first_of(i);
    row = rows.base + claims.number[first] - 1;
    if (first == i) rows.write(row, items.query(i));
  }
  rows.row[i] = row;
  const int64_t slot = i - items.num_targets;
  if (slot < 0 || rows.mask == nullptr) return;
  rows.mask[slot] = is_there;
  rows.dt[slot] = is_there ? static_cast<float>(seconds_between(items.slot_t[slot], items.t[slot / items.k],
                                                                rows.seconds_per_tick))
                           : 0.0F;
}
