// Frontiers and lists of events: equal rows become one, numbered by first appearance, as
// csrc/src/frontier.cpp does one after the other. A table of hashes, filled with `kUnclaimed` before, tells
// which item is the first of equal ones, whatever the order in which threads come; prefix sums, which are
// torch's, number the first ones. Shapes are all that the host knows.
#include "tgflow/cuda/frontier.hpp"

using namespace tgflow;

/// Per item: finds the place of its equals, and leaves the first of them there.
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
    if (other > mine) atomicMin(&claims.first[at], mine);  // it only ever falls
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

/// Per item, once `number` is summed up: its row, the row itself if it is the first, and what is said of a
/// slot; and the padding behind the rows in use.
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
  rows.dt[slot] =
      is_there ? seconds_between(items.slot_t[slot], items.t[slot / items.k], rows.seconds_per_tick) : 0.0F;
}
