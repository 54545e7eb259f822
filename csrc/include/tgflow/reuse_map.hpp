// Maps rows of recent batches to slots of a ring, and selects the rows of a batch to reuse.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "tgflow/detail/frontier_query.hpp"
#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Rows that a batch requests, each of a (node, time), all distinct.
struct ReuseQueries {
  int64_t size;
  const node_t* node;     ///< [size]
  const tick_t* t;        ///< [size]
  const bool* may_recur;  ///< [size]: whether the row is the same in later batches.
};

/// How a batch's rows are reused.
struct ReuseRule {
  int64_t staleness;  ///< Staleness bound: rows computed at most this many batches before are reused.
  double refresh;     ///< Share of these that is recomputed.
  uint64_t key;       ///< Key of the draws by (node, time).
  double seconds_per_tick;
};

/// Numbers of a batch's rows of each kind, in the order in which `decide` lists them.
struct ReuseCounts {
  int64_t num_refreshed;  ///< Recomputed although in the ring; rewritten to their slots.
  int64_t num_stored;     ///< Computed and written to slots, including refreshed ones.
  int64_t num_computed;   ///< All computed rows.
  int64_t largest_lag;    ///< Batches since the oldest reused row was computed; 0 without any.
};

/// Rows that a ring holds, each with the batch that computed it.
struct ReuseRows {
  int64_t size;
  const int64_t* batch;  ///< [size], ascending
  const node_t* node;    ///< [size]
  const tick_t* t;       ///< [size]
  const int64_t* slot;   ///< [size], all of them distinct
};

/// The rows of the last batches by (node, time), in `capacity` slots. Without a free slot a row is computed
/// and not kept. The lowest free slot is taken, so that slots depend only on the ring's contents and not on
/// their history. Not thread-safe.
class ReuseMap {
 public:
  explicit ReuseMap(int64_t capacity);

  /// Discards rows too old for batch number `batch`, which must be larger than any before, and decides
  /// about its rows. Writes them to `order`, [size], first the computed ones, in the order of
  /// `ReuseCounts`, and then the reused ones; each kind in the order requested. Writes the
  /// slot of each of them, -1 without one, to `slot`, [size].
  ReuseCounts decide(int64_t batch, const ReuseQueries& asked, const ReuseRule& rule, int64_t* order,
                     int64_t* slot);

  /// Replaces the contents by these rows.
  void restore(const ReuseRows& rows);

  void clear();

  int64_t capacity() const { return slots_.size(); }
  int64_t size() const { return size_; }
  int64_t bytes() const;
  /// Upper bound on a slot's share of `bytes`.
  static constexpr int64_t kSlotBytes = 88;

 private:
  struct Slot {
    node_t node;
    tick_t t;
    int64_t batch;  ///< Batch that computed the row.
    int32_t older;  ///< The slots in use are a list from the oldest batch's to the newest's.
    int32_t newer;
  };

  static uint32_t tag_of(node_t node, tick_t t) { return static_cast<uint32_t>(hash_of({node, t, 0})); }
  int32_t find(node_t node, tick_t t) const;
  int32_t free_slot();
  void link(int32_t slot, int64_t batch, int32_t older);
  void unlink(int32_t slot);
  void add(int32_t slot, node_t node, tick_t t, int64_t batch, int32_t older);
  void forget_before(int64_t batch);
  void sort_rows(int64_t batch, const ReuseQueries& asked, const ReuseRule& rule);
  int64_t keep_rows(int64_t batch, const ReuseQueries& asked);

  HugeArray<Slot> slots_;
  int32_t num_taken_ = 0;  ///< Slots from this one on were never used.
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;  ///< Of the slots below.
  IdIndex places_;
  int64_t size_ = 0;
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  std::vector<int64_t> refreshed_, stored_, unkept_, reused_;  ///< Rows of the current batch.
  std::vector<int32_t> slot_of_row_;
  int64_t largest_lag_ = 0;
};

}  // namespace tgflow
