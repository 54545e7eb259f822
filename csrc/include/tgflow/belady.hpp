// Optimal replacement for a cache of which the next batches' accesses are known.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// What a cache is to do at each access of a batch, written by the planner; see tgflow/cache/contents.py.
struct PlannedMoves {
  int64_t* id;     ///< What is asked for, as it was observed.
  int32_t* hit;    ///< The slot where the row is, -1 if it is not cached.
  int32_t* admit;  ///< The slot the row goes to once all of its batch have been read, -1 for none.
};

/// Belady's replacement with bypass (IBM Systems Journal 5(2), 1966), a batch at a time.
///
/// The planner observes batches ahead, and plans them in that order. After each batch the
/// cache holds, of what it held and what the batch read, the rows whose next uses are nearest. If all batches
/// are observed first, no plan has fewer misses. Uses that it did not observe count as later than all known
/// ones, and among them the row used last stays.
///
/// O(1) an access, as next uses are batch numbers and slots wait in one list per batch. Memory is in
/// proportion to the accesses observed and not yet planned (8 bytes), to the ids among them and in the cache
/// (40 to 56 bytes), and to the slots (12 bytes).
class Belady {
 public:
  /// A cache of `num_slots` slots that holds `id[slot]`, -1 for nobody, or nothing if `id` is null; higher
  /// slots count as used later. Throws std::invalid_argument unless 0 <= num_slots < 2^30 and ids are held
  /// once.
  explicit Belady(int64_t num_slots, const int64_t* id = nullptr);

  /// Observes what the batch after those observed so far will ask for, each id once. Throws
  /// std::invalid_argument if one is negative or comes twice, or if 2^30 accesses were to wait; nothing is
  /// changed then.
  void observe(const int64_t* id, int64_t n);

  /// Batches and accesses that were observed and are not planned.
  int64_t num_batches() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t num_accesses() const { return static_cast<int64_t>(accesses_.size()); }
  /// Accesses of the first of them. There must be one.
  int64_t next_size() const { return sizes_.front(); }

  /// Plans the first of them. The cache then counts as what it will be when the moves have been made.
  void plan_next(const PlannedMoves& moves);

  /// Writes the id of each slot, -1 for nobody's.
  void contents(int64_t* id) const;

  int64_t num_slots() const { return num_slots_; }
  /// Bytes held.
  int64_t bytes() const;

 private:
  struct Slot {
    int32_t number;   ///< Its row's, -1 for nobody's.
    int32_t earlier;  ///< Its neighbors in the ring of unknown next use, from the longest unused on,
    int32_t later;    ///< or the one after it in the list of those with the same next use.
  };

  /// Of an id that is in the cache, or was observed.
  struct Row {
    int64_t id;
    int64_t last = -1;  ///< The last access observed, counted from the first ever; -1 if that is planned.
    int32_t slot = -1;  ///< -1 if it is not cached.
    int32_t mark = -1;  ///< The batch last observed that asks for it; or of the one being planned, -2 - the
                        ///< access that has admitted it.
  };

  struct Access {
    int32_t number;    ///< Of its row.
    int32_t next_use;  ///< The batch that asks for it next, -1 if there is none as far as is known.
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
  /// The first slot that waits for a batch, -1 if there is none.
  int32_t& waiting(int32_t batch) { return waiting_[static_cast<std::size_t>(batch - planned_)]; }
  Access& access(int64_t number) { return accesses_[static_cast<std::size_t>(number - num_gone_)]; }

  int64_t num_slots_;
  HugeArray<Slot> slots_;    ///< The last one is no slot but where the ring begins and ends.
  int64_t num_unknown_ = 0;  ///< Slots in the ring,
  int64_t num_aged_ = 0;     ///< and how many of them, from its beginning, the present batch has not used.

  IdIndex index_;              ///< The numbers of rows,
  HugeArray<Row> rows_{16};    ///< which are where they are until they are erased; then their numbers
  std::vector<int32_t> free_;  ///< are others'.
  int32_t num_rows_ = 0;       ///< That were ever there at once.

  std::deque<Access> accesses_;  ///< Of the batches that were observed and are not planned,
  std::deque<int64_t> sizes_;    ///< how many each has,
  std::deque<int32_t> waiting_;  ///< and the first slot whose next use each is, -1 if there is none.
  int64_t num_gone_ = 0;         ///< Accesses before those.
  int32_t planned_ = 0;          ///< Batches so far; the next one's number.
  int32_t observed_ = 0;
  int32_t farthest_ = 0;  ///< No slot waits for a later batch.
};

}  // namespace tgflow
