// Rows of a table in host memory, by id, under a replacement policy or a planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// The policies of tgflow/graph/cache/contents.py, in that order. kGiven: a schedule determines which rows
/// are admitted, and where.
enum class CachePolicy : int64_t { kLru, kLfu, kFifo, kStatic, kGiven };

/// A cache's accesses differ from its schedule.
class ScheduleMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Counts of distinct rows.
struct CacheCounts {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t admitted = 0;
  int64_t evicted = 0;
  int64_t bypassed = 0;
  int64_t preloaded = 0;
  int64_t written = 0;
};

/// Sources of one gather's rows, and the rows to admit once they are read.
struct CacheLookup {
  static constexpr int32_t kNothing = -1;

  /// Per id: its slot, or -2 - its number among the misses, or kNothing for a row of zeros.
  std::vector<int32_t> source;
  std::vector<int64_t> miss;   ///< The distinct missing ids, in order of first appearance.
  std::vector<int32_t> first;  ///< Position of the first appearance of each.
  std::vector<int32_t> admit;  ///< Slot to admit each of them to, or kNothing.
  int64_t begin = 0;           ///< Its first position on the cache's clock,
  int64_t come = 0;            ///< and that of the first id as an admitted row.
  bool restores = false;       ///< Slots keep their ranks.

  static int32_t of_miss(std::size_t number) { return -2 - static_cast<int32_t>(number); }
  static std::size_t miss_of(int32_t from) { return static_cast<std::size_t>(-2 - from); }
};

/// A batch's moves from a planner; see tgflow/graph/cache/contents.py.
struct CacheSchedule {
  const int64_t* id;
  const int32_t* hit;
  const int32_t* admit;
  int64_t size;
};

/// `capacity` rows of `row_bytes`. Missing rows are admitted after they are read: a look-up returns
/// them, and `finish` takes their rows; no other call may come in between.
class RowCache {
 public:
  /// Throws std::invalid_argument if there are 2^30 slots or more, std::bad_alloc if memory is short.
  RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes);

  /// Looks `n` ids up, and chooses the rows to admit. Throws std::out_of_range if an id is not below
  /// `table_size`.
  CacheLookup look_up(const int64_t* id, int64_t n, int64_t table_size);

  /// The same for rows to admit without access: all misses are admitted, under any policy.
  CacheLookup preload(const int64_t* id, int64_t n, int64_t table_size);

  /// As `look_up`, by a schedule. Throws ScheduleMismatch if it does not match `id` or the contents.
  CacheLookup apply(const CacheSchedule& schedule, const int64_t* id, int64_t n, int64_t table_size);

  /// Restores the contents of a snapshot, also of another cache of the same size, except ids not below
  /// `table_size`; as `preload`.
  CacheLookup restore(const int64_t* id, const int64_t* key, int64_t table_size);

  /// Copies all looked-up rows to `out` [n, row_bytes], null for none, and the admitted ones to
  /// their slots. `rows` are those of the misses.
  void finish(const CacheLookup& lookup, const char* rows, char* out);

  /// Admits the last of the rows [n, row_bytes] just appended to the table with ids from `first` on, unless
  /// the policy does not admit any.
  void append(int64_t first, int64_t n, const char* rows);

  /// Evicts the ids from `size` on.
  void truncate(int64_t size);

  /// Writes the id of each slot (-1: none), and its rank: uses * 2^48 + a position on the
  /// clock.
  void snapshot(int64_t* id, int64_t* key) const;
  CacheCounts counts() const;
  void reset_counts();
  int64_t capacity() const { return came_.size(); }
  int64_t row_bytes() const { return static_cast<int64_t>(row_bytes_); }
  /// Bytes held: rows, index and order.
  int64_t bytes() const;

 private:
  struct Held {
    int64_t id;    ///< kFree for none.
    int64_t used;  ///< When it was last accessed, 0 for never.
  };
  /// A slot's neighbors in its list.
  struct Link {
    int32_t before;
    int32_t after;
  };
  static constexpr int64_t kFree = -1;

  char* row(int32_t s) { return rows_.data() + static_cast<std::size_t>(s) * row_bytes_; }
  /// Order of the slots in a list.
  int64_t key(int32_t s) const { return by_use_ ? held_[s].used : came_[s]; }
  /// First the list of free slots, then one per number of uses, if these count.
  int32_t num_lists() const { return static_cast<int32_t>(links_.size() - capacity()); }
  int32_t list_of(int32_t s) const { return held_[s].id == kFree ? 0 : counts_uses_ ? 1 + uses_[s] : 1; }
  /// Sentinel before the first slot of a list and after its last.
  int32_t end_of(int32_t list) const { return static_cast<int32_t>(capacity()) + list; }

  CacheLookup begin(int64_t num_positions);
  int32_t find(int64_t id) const;
  void find_all(const int64_t* id, int64_t n, CacheLookup& out);
  void find_chunk(const int64_t* id, int64_t n, int32_t* slot) const;
  void note_miss(int64_t id, int64_t i, CacheLookup& out);
  void use(int32_t s, int64_t position);
  std::size_t choose(CacheLookup& out) const;
  void keep_admitted(CacheLookup& out) const;
  void match(const CacheSchedule& schedule, const int64_t* id, int64_t n, CacheLookup& out);
  void check_slots(const CacheSchedule& schedule) const;
  void copy_asked(const CacheLookup& lookup, const char* rows, char* out);
  template <typename RowAt>
  void admit(const CacheLookup& lookup, const RowAt& row_at);
  void put(int64_t id, int32_t s, int64_t position);
  void take_out(int32_t s);
  void push_back(int32_t s);
  void sort_lists();

  const bool counts_uses_;  ///< Slots are ordered by number of accesses,
  const bool by_use_;       ///< then by last access instead of admission.
  const bool is_given_;     ///< Misses are not admitted by themselves.
  const std::size_t row_bytes_;
  HugeArray<char> rows_;
  HugeArray<Held> held_;     ///< Per slot.
  HugeArray<int64_t> came_;  ///< Per slot: when it was admitted.
  HugeArray<uint8_t> uses_;  ///< Per slot: number of uses, under lfu.
  HugeArray<Link> links_;    ///< Per slot, and per list: lists in the order of eviction.
  IdIndex index_;            ///< Slots; at most a quarter full, so that most look-ups take one probe.
  RowIndex numbers_;         ///< Scratch: ids of this gather.
  int64_t clock_ = 1;        ///< Number of accesses so far, the position of the next.
  int64_t admissions_ = 0;
  CacheCounts counts_;
  mutable std::mutex mutex_;
};

}  // namespace tgflow
