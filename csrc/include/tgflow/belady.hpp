// Optimal replacement for a cache with known accesses of the next batches.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// Moves of a cache at each access of a batch, written by the planner; see tgflow/graph/cache/contents.py.
struct PlannedMoves {
  int64_t* id;     ///< Accessed id, in the order observed.
  int32_t* hit;    ///< Slot that holds the row, -1 if not cached.
  int32_t* admit;  ///< Slot to admit the row to after the batch's reads, -1: none.
};

/// Belady's replacement with bypass (IBM Systems Journal 5(2), 1966), a batch at a time.
///
/// The planner observes batches ahead, and plans them in that order. After each batch the cache
/// holds, among its contents and the batch's rows, those with the nearest next uses. If all batches
/// are observed first, no plan has fewer misses. Unobserved uses count as later than all known
/// ones, and among them the row used last stays.
///
/// O(1) per access, as next uses are batch numbers and slots wait in one list per batch. Memory is
/// proportional to the accesses observed and not yet planned (8 bytes), to the ids among them and cached
/// (40 to 56 bytes), and to the slots (12 bytes).
class Belady {
 public:
  /// A cache of `num_slots` slots that holds `id[slot]`, -1 for free, or nothing if `id` is null; higher
  /// slots count as used later. Throws std::invalid_argument unless 0 <= num_slots < 2^30 and ids are
  /// unique.
  explicit Belady(int64_t num_slots, const int64_t* id = nullptr);

  /// Observes the accesses of the next batch, each id once. Throws std::invalid_argument if one is negative
  /// or a duplicate, or if 2^30 accesses would be pending; nothing has changed then.
  void observe(const int64_t* id, int64_t n);

  /// Batches and accesses that are observed and not planned.
  int64_t num_batches() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t num_accesses() const { return static_cast<int64_t>(accesses_.size()); }
  /// Accesses of the first of these batches. There must be one.
  int64_t next_size() const { return sizes_.front(); }

  /// Plans the first of these batches. Later plans assume that the moves were made.
  void plan_next(const PlannedMoves& moves);

  /// Writes the id of each slot, -1 for free ones.
  void contents(int64_t* id) const;

  int64_t num_slots() const { return num_slots_; }
  /// Bytes held.
  int64_t bytes() const;

 private:
  struct Slot {
    int32_t number;   ///< Number of its row, -1 if free.
    int32_t earlier;  ///< Its neighbors in the ring of unknown next use, longest unused first,
    int32_t later;    ///< or the next one in the list for the same next use.
  };

  /// An id that is cached or observed.
  struct Row {
    int64_t id;
    int64_t last = -1;  ///< Last observed access, counted from the first ever; -1 if planned.
    int32_t slot = -1;  ///< -1 if not cached.
    int32_t mark = -1;  ///< Last observed batch that accesses it; for the batch being planned, -2 - the
                        ///< access that admitted it.
  };

  struct Access {
    int32_t number;    ///< Number of its row.
    int32_t next_use;  ///< Next batch that accesses it, -1 if unknown.
  };

  int32_t add_row(int64_t id);
  void erase_row(int32_t number);
  void erase_if_unused(int32_t number);
  void number_ids(const int64_t* id, int64_t n);
  void admit(int32_t access, const Access& miss, int32_t* moves);
  int32_t victim(int32_t next_use);
  void evict(int32_t slot, int32_t* moves);
  void wait(int32_t slot, int32_t next_use);
  void take_unknown(int32_t slot);
  /// The first slot whose next use is in a batch, -1 if there is none.
  int32_t& waiting(int32_t batch) { return waiting_[static_cast<std::size_t>(batch - planned_)]; }
  Access& access(int64_t number) { return accesses_[static_cast<std::size_t>(number - num_gone_)]; }

  int64_t num_slots_;
  HugeArray<Slot> slots_;    ///< The last one is the sentinel of the ring.
  int64_t num_unknown_ = 0;  ///< Slots in the ring,
  int64_t num_aged_ = 0;     ///< and how many of them, from its start, the present batch has not used.

  IdIndex index_;              ///< Numbers of rows,
  HugeArray<Row> rows_{16};    ///< which stay in place until erased; then their numbers
  std::vector<int32_t> free_;  ///< are reused.
  int32_t num_rows_ = 0;       ///< Largest number of rows at once.

  std::deque<Access> accesses_;  ///< Of the observed batches that are not planned,
  std::deque<int64_t> sizes_;    ///< number of each,
  std::deque<int32_t> waiting_;  ///< and first slot whose next use it is, -1: none.
  int64_t num_gone_ = 0;         ///< Accesses before those.
  int32_t planned_ = 0;          ///< Number of planned batches, and of the next one.
  int32_t observed_ = 0;
  int32_t farthest_ = 0;  ///< Latest batch that a slot waits for.
};

}  // namespace tgflow
