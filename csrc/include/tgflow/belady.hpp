// Optimal replacement for a cache of which the next batches' accesses are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/huge_array.hpp"

namespace tgflow {

/// A `Row` of each id that is there; ids are at least 0, and the row's `id`. A row has a number, and is where
/// it is until it is erased; then its number is another's.
template <typename Row>
class RowsById {
 public:
  Row& operator[](int32_t number) { return rows_[number]; }
  const Row& operator[](int32_t number) const { return rows_[number]; }

  /// Ask for the memory of a look-up to come; the second one later, for what the first one finds. A compiler
  /// that does not inline the second takes it for one without effect, and drops its calls.
  void prefetch_index(int64_t id) const { index_.prefetch(id_tag(id)); }
  [[gnu::always_inline]] void prefetch_row(int64_t id) const {
    const int32_t number = index_.find(id_tag(id), [](int32_t) { return true; });
    if (number >= 0) prefetch(number);
  }
  void prefetch(int32_t number) const { __builtin_prefetch(&rows_[number], 1); }

  /// The number of `id`, which gets a row made by `Row{id}` if it had none.
  int32_t add(int64_t id) {
    if (num_rows_ == rows_.size()) grow_rows();
    const bool reuses = !free_.empty();
    const int32_t next = reuses ? free_.back() : static_cast<int32_t>(num_rows_);
    const int32_t number =
        index_.find_or_insert(id_tag(id), next, [&](int32_t n) { return rows_[n].id == id; });
    if (number != next) return number;
    if (reuses) {
      free_.pop_back();
    } else {
      ++num_rows_;
    }
    rows_[number] = Row{id};
    return number;
  }

  void erase(int32_t number) {
    index_.erase(id_tag(rows_[number].id), number);
    free_.push_back(number);
  }

  int64_t bytes() const {
    return num_rows_ * static_cast<int64_t>(sizeof(Row)) + index_.bytes() +
           static_cast<int64_t>(free_.size() * sizeof(int32_t));
  }

 private:
  void grow_rows() {
    HugeArray<Row> rows(2 * rows_.size());
    std::memcpy(rows.data(), rows_.data(), static_cast<std::size_t>(rows_.bytes()));
    rows_ = std::move(rows);
  }

  IdIndex index_;
  HugeArray<Row> rows_{16};
  int64_t num_rows_ = 0;       ///< That were ever there at once,
  std::vector<int32_t> free_;  ///< of which these are not there now.
};

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
  int64_t num_accesses() const { return num_seen_ - num_gone_; }
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
    int32_t number;
    int32_t next_use;  ///< The batch that asks for it next, -1 if there is none as far as is known.
  };

  struct Miss {
    int32_t access;  ///< Of the batch.
    int32_t number;
    int32_t next_use;
  };

  void hold(int32_t slot, int64_t id);
  void number_ids(const int64_t* id, int64_t n);
  void unnumber(int64_t first_access);
  void link_uses(int64_t first_access);
  void prefetch_use(int64_t i) const;
  void prefetch_slot(int32_t number) const;
  void prefetch_next(int32_t slot) const;
  void make_room_for_a_batch();
  void use_hits(int64_t n, const PlannedMoves& moves);
  void admit(const Miss& miss, int32_t* moves);
  int32_t victim(int32_t next_use);
  void evict(int32_t slot, int32_t* moves);
  void forget_missed();

  void wait(int32_t slot, int32_t next_use);
  void append_unknown(int32_t slot);
  void take_unknown(int32_t slot);
  int32_t farthest();
  int32_t& waiting(int32_t batch) {
    return waiting_[static_cast<std::size_t>(batch) & (waiting_.size() - 1)];
  }
  uint64_t& filled(int32_t word) { return filled_[static_cast<std::size_t>(word) & (filled_.size() - 1)]; }
  Access& access(int64_t number) { return accesses_[number & (accesses_.size() - 1)]; }
  const Access& access(int64_t number) const { return accesses_[number & (accesses_.size() - 1)]; }
  void make_room_for_accesses(int64_t n);
  void set_filled(int32_t batch);
  void set_empty(int32_t batch);

  int64_t num_slots_;
  HugeArray<Slot> slots_;    ///< The last one is no slot but where the ring begins and ends.
  int64_t num_unknown_ = 0;  ///< Slots in the ring,
  int64_t num_aged_ = 0;     ///< and how many of them, from its beginning, the present batch has not used.

  RowsById<Row> rows_;
  HugeArray<Access> accesses_;  ///< A ring: of the batches that were observed and are not planned,
  std::deque<int64_t> sizes_;   ///< and how many each has.
  int64_t num_gone_ = 0;        ///< Accesses before those,
  int64_t num_seen_ = 0;        ///< and with them.
  int32_t planned_ = 0;         ///< Batches so far; the next one's number.
  int32_t observed_ = 0;

  std::vector<Miss> missed_;      ///< Accesses of the present batch.
  std::vector<int32_t> waiting_;  ///< Of each batch to come: the first slot whose next use it is, or -1,
  std::vector<uint64_t> filled_;  ///< and a bit, which is set if there is one. Both are rings.
  int32_t top_ = 0;               ///< No later word of `filled_` has a bit.
};

}  // namespace tgflow
