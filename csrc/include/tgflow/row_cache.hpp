// A cache of a table's rows: which are held, which make room, and the rows themselves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/huge_array.hpp"
#include "tgflow/slot_order.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// As tgflow/cache/contents.py has them, in that order. kGiven: a schedule says which rows are admitted, and
/// where.
enum class CachePolicy : int64_t { kLru, kLfu, kFifo, kStatic, kGiven };

/// What a policy asks of a cache.
struct CacheTraits {
  bool by_use;       ///< Slots are ordered by when they were asked for, and not by when they came.
  bool counts_uses;  ///< By how often comes before that.
  bool is_given;     ///< What is asked for and missing is not admitted by itself.
};

TGFLOW_HD constexpr CacheTraits traits_of(CachePolicy policy) {
  switch (policy) {
    case CachePolicy::kLru:
      return {true, false, false};
    case CachePolicy::kLfu:
      return {true, true, false};
    case CachePolicy::kFifo:
      return {false, false, false};
    case CachePolicy::kStatic:
    case CachePolicy::kGiven:
      return {false, false, true};
  }
  return {};
}

/// What is asked of a cache is not what its schedule says.
class ScheduleMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Of distinct rows.
struct CacheCounts {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t admitted = 0;
  int64_t evicted = 0;
  int64_t bypassed = 0;
  int64_t preloaded = 0;
  int64_t written = 0;
};

/// Where the rows of one gather come from, and which of them stay in the cache.
struct CacheLookup {
  static constexpr int32_t kNothing = -1;

  /// Per id: its slot, or -2 - its number among the misses, or kNothing for a row of zeros.
  std::vector<int32_t> source;
  std::vector<int64_t> miss;   ///< The distinct ids that are not there, in order of first appearance.
  std::vector<int32_t> first;  ///< Where each of them first appears.
  std::vector<int32_t> admit;  ///< The slot into which each of them is put, or kNothing.
  bool puts_after = false;     ///< Slots may be read before they are written.
  bool alone = false;          ///< Other gathers wait until it is finished.
  int64_t begin = 0;           ///< Its first position on the cache's clock.

  static int32_t of_miss(std::size_t number) { return -2 - static_cast<int32_t>(number); }
  static std::size_t miss_of(int32_t from) { return static_cast<std::size_t>(-2 - from); }
};

/// A batch's moves as a planner wrote them; see tgflow/cache/contents.py.
struct CacheSchedule {
  const int64_t* id;
  const int32_t* hit;
  const int32_t* admit;
  int64_t size;
};

/// What is in each slot (-1: nothing), and by what it is ranked: uses * 2^48 + a position on the clock.
struct CacheState {
  const int64_t* id;
  const int64_t* key;
};

/// Where a cache writes that.
struct CacheStateOut {
  int64_t* id;
  int64_t* key;
};

/// The rows that were missing: one after the other, or where their ids say, from id `first` on.
struct MissRows {
  const char* rows;
  bool by_id;
  int64_t first = 0;
};

/// `capacity` rows of `row_bytes`. Any number of threads may gather: they wait for each other while the index
/// is read and written, not while rows are copied. A slot that a gather at work reads or fills stays as it
/// is.
class RowCache {
 public:
  /// Throws std::invalid_argument if there are 2^30 slots or more, std::bad_alloc if memory is short.
  RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes);

  /// Looks `n` ids up and admits what the policy admits. `finish` must follow, in which the caller gives the
  /// rows of `out.miss`. Throws std::out_of_range if an id is not below `table_size`; nothing has changed
  /// then.
  void look_up(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out);

  /// The same for rows that nobody asked for: `out.miss` holds those that come in, whatever the policy.
  void preload(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out);

  /// The table has just been given the rows [n, row_bytes] of the ids from `first` on: the last of them come
  /// in, unless the policy does without.
  void append(int64_t first, int64_t n, const char* rows);

  /// As `look_up`, as a schedule says. Throws ScheduleMismatch if it does not fit `id` or the contents;
  /// nothing has changed then, unless it puts two rows into one slot, which leaves an empty cache.
  void apply(const CacheSchedule& schedule, const int64_t* id, int64_t n, int64_t table_size,
             CacheLookup& out);

  /// Brings back the contents of a snapshot, also of another cache as large, but for ids not below
  /// `table_size`; as `preload`.
  void restore(const CacheState& state, int64_t table_size, CacheLookup& out);

  /// Copies all rows to `out` [n, row_bytes], null for none, and the admitted ones to their slots.
  void copy(const CacheLookup& lookup, const MissRows& from, char* out);

  /// Ends what `look_up` began. Without the rows (`done` false), what was admitted leaves again.
  void finish(const CacheLookup& lookup, bool done);

  /// Keeps gathers out, once those at work are done; between the two calls the table may change.
  void begin_change();
  void end_change();
  /// Writes rows [n, row_bytes] of ids that are there. Between begin_change and end_change.
  void write(const int64_t* id, int64_t n, const char* rows);
  /// Forgets the ids from `size` on. Between begin_change and end_change.
  void truncate(int64_t size);

  void snapshot(const CacheStateOut& out) const;
  CacheCounts counts() const;
  void reset_counts();
  int64_t capacity() const { return came_.size(); }
  int64_t row_bytes() const { return static_cast<int64_t>(row_bytes_); }
  /// Bytes held: rows, index and order.
  int64_t bytes() const;

 private:
  class Started;
  /// A gather at work: the positions on the clock of its ids are `[begin, end)`.
  struct AtWork {
    int64_t begin;
    int64_t end;
  };
  struct Held {
    int64_t id;    ///< kFree for none.
    int64_t used;  ///< When it was asked for last, 0 for never.
  };
  static constexpr int64_t kFree = -1;

  /// What slots are ordered by.
  const int64_t& key(int32_t s) const { return traits_.by_use ? held_[s].used : came_[s]; }
  char* row(int32_t s) { return rows_.data() + static_cast<std::size_t>(s) * row_bytes_; }
  const char* row(int32_t s) const { return rows_.data() + static_cast<std::size_t>(s) * row_bytes_; }
  int32_t find(int64_t id) const;

  static void check_ids(const int64_t* id, int64_t n, int64_t table_size);
  void find_all(const int64_t* id, int64_t n, CacheLookup& out);
  void find_chunk(const int64_t* id, int64_t n, int32_t* slot) const;
  void note(int64_t id, int64_t i, bool alone, CacheLookup& out);
  void note_miss(int64_t id, int64_t i, bool busy, CacheLookup& out);
  bool is_filling(int32_t s, int64_t begin) const;
  void use(int32_t s, int64_t position);
  void come_in(int64_t first, int64_t n, CacheLookup& out);
  static void keep_admitted(CacheLookup& out);
  void admit(int64_t come, CacheLookup& out);
  void match(const CacheSchedule& schedule, const int64_t* id, int64_t n, CacheLookup& out);
  void check_slots(const CacheSchedule& schedule) const;
  bool may_run(const CacheSchedule& schedule) const;
  void put_all(const CacheLookup& lookup);
  void put(int64_t id, int32_t s, int64_t position);
  void copy_asked(const CacheLookup& lookup, const MissRows& from, char* out);
  void put_admitted(const CacheLookup& lookup, const MissRows& from);
  void set_free(int32_t s);
  void purge();
  void halve_uses();
  void rebuild_order();
  void list_free();
  void clear();

  const CacheTraits traits_;
  const std::size_t row_bytes_;
  HugeArray<char> rows_;
  HugeArray<Held> held_;     ///< Per slot.
  HugeArray<int64_t> came_;  ///< Per slot: when it was admitted.
  HugeArray<uint8_t> uses_;  ///< Per slot: how often it was used, under lfu.
  IdIndex index_;            ///< Slots; a quarter full at most, so that most look-ups end where they begin.
  SlotOrder order_;
  std::vector<int32_t> free_;     ///< Highest first.
  std::vector<int32_t> victims_;  ///< Scratch.
  RowIndex numbers_;              ///< Scratch: ids of this gather.
  std::vector<AtWork> at_work_;   ///< Oldest first.
  int64_t clock_ = 1;             ///< Ids asked for so far; each has its position.
  int64_t admissions_ = 0;
  bool changing_ = false;
  int clearing_ = 0;  ///< Gathers that failed, and wait for those at work to empty the cache.
  CacheCounts counts_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace tgflow
