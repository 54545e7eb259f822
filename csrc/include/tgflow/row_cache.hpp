// Rows of a table in host memory, by id: a policy or a planner says which of them stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// As tgflow/cache/contents.py has them, in that order. kGiven: a schedule says which rows are admitted, and
/// where.
enum class CachePolicy : int64_t { kLru, kLfu, kFifo, kStatic, kGiven };

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

/// Where the rows of one gather come from, and which of them stay in the cache once they are there.
struct CacheLookup {
  static constexpr int32_t kNothing = -1;

  /// Per id: its slot, or -2 - its number among the misses, or kNothing for a row of zeros.
  std::vector<int32_t> source;
  std::vector<int64_t> miss;   ///< The distinct ids that are not there, in order of first appearance.
  std::vector<int32_t> first;  ///< Where each of them first appears.
  std::vector<int32_t> admit;  ///< The slot into which each of them is put, or kNothing.
  int64_t begin = 0;           ///< Its first position on the cache's clock,
  int64_t come = 0;            ///< and that of the first id as a row that comes in.
  bool restores = false;       ///< Slots keep the ranks that they have.

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

/// `capacity` rows of `row_bytes`. Rows that are missing come in when they have been read: a look-up says
/// which they are, and `finish` takes them; nothing else may happen to the cache in between.
class RowCache {
 public:
  /// Throws std::invalid_argument if there are 2^30 slots or more, std::bad_alloc if memory is short.
  RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes);

  /// Looks `n` ids up, and chooses what the policy admits. Throws std::out_of_range if an id is not below
  /// `table_size`.
  CacheLookup look_up(const int64_t* id, int64_t n, int64_t table_size);

  /// The same for rows that nobody asked for: the misses are those that come in, whatever the policy.
  CacheLookup preload(const int64_t* id, int64_t n, int64_t table_size);

  /// As `look_up`, as a schedule says. Throws ScheduleMismatch if it does not fit `id` or the contents.
  CacheLookup apply(const CacheSchedule& schedule, const int64_t* id, int64_t n, int64_t table_size);

  /// Brings back the contents of a snapshot, also of another cache as large, but for ids not below
  /// `table_size`; as `preload`.
  CacheLookup restore(const int64_t* id, const int64_t* key, int64_t table_size);

  /// Copies all rows that were looked up to `out` [n, row_bytes], null for none, and the admitted ones to
  /// their slots. `rows` are those of the misses.
  void finish(const CacheLookup& lookup, const char* rows, char* out);

  /// The table has just been given the rows [n, row_bytes] of the ids from `first` on: the last of them come
  /// in, unless the policy does without.
  void append(int64_t first, int64_t n, const char* rows);

  /// Writes rows [n, row_bytes] of ids that are there.
  void write(const int64_t* id, int64_t n, const char* rows);
  /// Forgets the ids from `size` on.
  void truncate(int64_t size);

  /// Writes what is in each slot (-1: nothing), and by what it is ranked: uses * 2^48 + a position on the
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
    int64_t used;  ///< When it was asked for last, 0 for never.
  };
  /// The slots beside one in its list.
  struct Link {
    int32_t before;
    int32_t after;
  };
  static constexpr int64_t kFree = -1;

  char* row(int32_t s) { return rows_.data() + static_cast<std::size_t>(s) * row_bytes_; }
  /// What slots of one list are ordered by.
  int64_t key(int32_t s) const { return by_use_ ? held_[s].used : came_[s]; }
  /// Of free slots the first, then a list for each number of uses, where these count.
  int32_t num_lists() const { return static_cast<int32_t>(links_.size() - capacity()); }
  int32_t list_of(int32_t s) const { return held_[s].id == kFree ? 0 : counts_uses_ ? 1 + uses_[s] : 1; }
  /// What comes before the first slot of a list, and after its last.
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

  const bool counts_uses_;  ///< Slots are ordered by how often they were asked for,
  const bool by_use_;       ///< then by when they were last, and not by when they came.
  const bool is_given_;     ///< What is asked for and missing is not admitted by itself.
  const std::size_t row_bytes_;
  HugeArray<char> rows_;
  HugeArray<Held> held_;     ///< Per slot.
  HugeArray<int64_t> came_;  ///< Per slot: when it was admitted.
  HugeArray<uint8_t> uses_;  ///< Per slot: how often it was used, under lfu.
  HugeArray<Link> links_;    ///< Per slot, and per list: lists in the order in which slots make room.
  IdIndex index_;            ///< Slots; a quarter full at most, so that most look-ups end where they begin.
  RowIndex numbers_;         ///< Scratch: ids of this gather.
  int64_t clock_ = 1;        ///< Ids asked for so far; each has its position.
  int64_t admissions_ = 0;
  CacheCounts counts_;
  mutable std::mutex mutex_;
};

}  // namespace tgflow
