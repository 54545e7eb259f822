// Optimal replacement for a cache whose future accesses are known for a window of batches.
#pragma once

#include <cstdint>
#include <vector>

#include "tgflow/detail/numbers.hpp"

namespace tgflow {

/// What the batches of a window will ask for: batch `b` the ids [offset[b], offset[b + 1]), each once.
struct Accesses {
  const int64_t* id;
  const int64_t* offset;  ///< [num_batches + 1], from 0
  int64_t num_batches;

  int64_t size() const { return offset[num_batches]; }
};

/// What a cache is to do at each access, written by the planner; see tgflow/cache/script.py.
struct PlannedMoves {
  int32_t* hit;    ///< The slot where the row is, -1 if it is not cached.
  int32_t* admit;  ///< The slot the row goes to once all of its batch have been read, -1 for none.
};

/// Belady's replacement with bypass (IBM Systems Journal 5(2), 1966), a batch at a time.
///
/// After each batch the cache holds, of what it held and what the batch read, the rows whose next uses are
/// nearest. No plan has fewer misses over a window that is known whole. Uses past the window are unknown:
/// they count as later than all known ones, and among them the row used last stays. Contents and their
/// recency carry over from one window to the next.
///
/// O(1) an access, as next uses are batch numbers and slots wait in one list per batch; O(num_slots) a
/// window. Memory is in proportion to the window and the slots (16 bytes each), whatever the ids.
class Belady {
 public:
  /// A cache of `num_slots` slots, all free. Throws std::invalid_argument unless 0 <= num_slots < 2^30.
  explicit Belady(int64_t num_slots);

  /// Starts from a cache that holds `id[slot]`, -1 for nobody; higher slots count as used later.
  void reset(const int64_t* id);

  /// Plans a window. The cache then counts as what it will be when the moves have been made. Throws
  /// std::invalid_argument if an id is negative or twice in a batch, or if the window has 2^30 accesses or
  /// batches; nothing is changed then.
  void plan(const Accesses& window, const PlannedMoves& moves);

  /// Writes the id of each slot, -1 for nobody's.
  void contents(int64_t* id) const;

  int64_t num_slots() const { return num_slots_; }

 private:
  struct Slot {
    int64_t id;       ///< -1 for nobody's; while a window that uses it is planned, -2 - its number there.
    int32_t earlier;  ///< Its neighbours in the ring of unknown next use, from the longest unused on,
    int32_t later;    ///< or the one after it in the list of those with the same next use.
  };

  struct Miss {
    int32_t access;
    int32_t number;
    int32_t next_use;
  };

  /// Of a distinct id of the window.
  struct Row {
    int32_t first;     ///< The batch that uses it first.
    int32_t slot;      ///< -1 if it is not cached.
    int32_t admitted;  ///< The access that it was last admitted by, -1 if the window has not admitted it.
  };

  void read(const Accesses& window, const PlannedMoves& moves);
  void place_cached(int64_t num_batches);
  void use_hits(const Accesses& window, int32_t batch, const PlannedMoves& moves);
  void admit(const Miss& miss, int64_t batch_begin, int32_t* moves);
  int32_t victim(int32_t next_use);
  void evict(int32_t slot, int64_t batch_begin, int32_t* moves);
  void restore_ids();

  void wait(int32_t slot, int32_t next_use);
  void append_unknown(int32_t slot);
  void take_unknown(int32_t slot);
  int32_t farthest();

  int64_t num_slots_;
  std::vector<Slot> slots_;  ///< The last one is no slot but where the ring begins and ends.
  int64_t num_unknown_ = 0;  ///< Slots in the ring,
  int64_t num_aged_ = 0;     ///< and how many of them, from its beginning, the present batch has not used.

  Numbers numbers_;               ///< Of the window's distinct ids,
  std::vector<Row> rows_;         ///< and what is known of each.
  std::vector<Miss> missed_;      ///< Accesses of the present batch.
  std::vector<int32_t> waiting_;  ///< Of each batch: the first slot whose next use it is, or -1,
  std::vector<uint64_t> filled_;  ///< and a bit, which is set if there is one.
  int32_t top_ = 0;               ///< No later word of `filled_` has a bit.
};

}  // namespace tgflow
