// Which rows of recent batches lie in which slots of a ring, and which rows of a batch are taken from there.
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

/// Rows that a batch asks for, each of a (node, time), all of them distinct.
struct ReuseQueries {
  int64_t size;
  const node_t* node;     ///< [size]
  const tick_t* t;        ///< [size]
  const bool* may_recur;  ///< [size]: whether the row is the same in later batches.
};

/// How a batch's rows are reused.
struct ReuseRule {
  int64_t staleness;  ///< Rows are taken that were computed at most this many batches before.
  double refresh;     ///< Share of these that are computed again.
  uint64_t key;       ///< Of the draws, which go by (node, time).
};

/// How many rows of a batch there are of each kind, in the order in which `decide` lists them.
struct ReuseCounts {
  int64_t num_refreshed;  ///< Computed although they are in the ring; written to their slots again.
  int64_t num_stored;     ///< Computed and written to slots, those that are refreshed included.
  int64_t num_computed;   ///< All that are computed.
  int64_t largest_lag;    ///< Batches since the oldest of those that are reused was computed; 0 without any.
};

/// Rows that a ring holds, each with the batch that computed it.
struct ReuseRows {
  int64_t size;
  const int64_t* batch;  ///< [size], ascending
  const node_t* node;    ///< [size]
  const tick_t* t;       ///< [size]
  const int64_t* slot;   ///< [size], all of them distinct
};

/// The rows of the last batches by (node, time), in slots of which there are `capacity`. Where no slot is
/// free a row is computed and not kept. The lowest free slot is taken, so that slots depend on what is in the
/// ring and not on how it came there. Not safe to use from several threads.
class ReuseMap {
 public:
  explicit ReuseMap(int64_t capacity);

  /// Forgets what is too old for batch number `batch`, which must be larger than any before, and decides
  /// about its rows. Writes them to `order`, [size], first those that are computed, in the order of
  /// `ReuseCounts`, and then those that are reused; each kind in the order in which they came. Writes the
  /// slot of each of them, -1 without one, to `slot`, [size].
  ReuseCounts decide(int64_t batch, const ReuseQueries& asked, const ReuseRule& rule, int64_t* order,
                     int64_t* slot);

  /// Holds these rows and no others.
  void restore(const ReuseRows& rows);

  void clear();

  int64_t capacity() const { return slots_.size(); }
  int64_t size() const { return size_; }
  int64_t bytes() const;
  /// What each slot adds to `bytes` at most.
  static constexpr int64_t kSlotBytes = 88;

 private:
  struct Slot {
    node_t node;
    tick_t t;
    int64_t batch;  ///< That computed the row.
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
  int32_t num_taken_ = 0;  ///< Slots from this one on have never been in use.
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;  ///< Of the slots below.
  IdIndex places_;
  int64_t size_ = 0;
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  std::vector<int64_t> refreshed_, stored_, unkept_, reused_;  ///< Rows of the batch that is decided about.
  std::vector<int32_t> slot_of_row_;
  int64_t largest_lag_ = 0;
};

}  // namespace tgflow
