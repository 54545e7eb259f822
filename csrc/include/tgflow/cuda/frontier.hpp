// Distinct rows in order of first appearance, without a wait: device code alone.
#pragma once

#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/frontier_query.hpp"

namespace tgflow {

constexpr int32_t kUnclaimed = -1;

/// What is to become distinct rows: targets, then slots, of which those of a target inherit its position.
/// Targets from `*num_used` on are not there, nor are slots that hold nobody. Events are slots without
/// targets. tgflow/cuda/frontier.py has it field by field.
struct FrontierItems {
  const node_t* node;       ///< [num_targets]
  const tick_t* t;          ///< [num_targets]
  const int64_t* position;  ///< [num_targets], or null: items are compared without it.
  const int64_t* num_used;  ///< Null: all targets are there.
  int64_t num_targets;
  const node_t* slot_node;  ///< [num_slots]
  const tick_t* slot_t;     ///< [num_slots], or null, as `position`
  int64_t num_slots;
  int64_t k;        ///< Slots of a target.
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

/// Which items are the first of equal ones: a hash table of items.
struct FrontierClaims {
  int32_t* first;   ///< [mask + 1], `kUnclaimed` before; then the first of equal items.
  int64_t mask;     ///< At least twice as many places as items, less one.
  int32_t* place;   ///< [size]: where in `first` an item's equals are.
  int32_t* number;  ///< [size]: whether an item is a first one; then how many there are up to it.

  __device__ int32_t first_of(int64_t i) const { return first[place[i]]; }
};

/// Where the distinct rows go, behind `base` rows that stand for what is not there.
struct FrontierRows {
  node_t* node;       ///< [base + size]; `kNoNode` beyond the rows in use, zeros in the next two.
  tick_t* t;          ///< [base + size], or null
  int64_t* position;  ///< [base + size], or null
  int64_t base;       ///< 0 or 1.
  int64_t* num_used;  ///< Becomes how many rows are in use.
  int64_t* row;       ///< [size]: of each item; 0 of those that are not there.
  bool* mask;         ///< [num_slots], or null: whether a slot's item is there.
  float* dt;          ///< [num_slots], or null: seconds from a slot's time to its target's.
  double seconds_per_tick;

  __device__ void write(int64_t to, const FrontierQuery& query) const {
    node[to] = query.node;
    if (t != nullptr) t[to] = query.t;
    if (position != nullptr) position[to] = query.position;
  }
};

}  // namespace tgflow
