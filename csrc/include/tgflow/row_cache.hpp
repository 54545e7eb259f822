#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Slots by level, and within a level by key. A slot that is used gets a larger key and a new entry at the
/// end of a queue; its old entry stays where it is and is passed over once it comes to the head.
/// `key_of(slot)` is the slot's present key.
class SlotOrder {
 public:
  explicit SlotOrder(std::size_t num_levels) : queues_(num_levels) {}

  /// `key` is above all keys of the level.
  void push(std::size_t level, int64_t key, int32_t slot) {
    queues_[level].entries.push_back({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), slot});
    ++num_entries_;
  }

  /// Appends the first slots to `out` until it has `size`, and forgets them. Slots for which `may_go(slot)`
  /// does not hold stay where they are.
  template <typename KeyOf, typename MayGo>
  void take(std::size_t size, const KeyOf& key_of, const MayGo& may_go, std::vector<int32_t>& out) {
    for (Queue& queue : queues_) {
      if (out.size() >= size) return;
      take_from(queue, size, key_of, may_go, out);
    }
  }

  /// Drops the entries that would be passed over.
  template <typename KeyOf>
  void purge(const KeyOf& key_of) {
    for (Queue& queue : queues_) {
      std::size_t kept = 0;
      for (std::size_t i = queue.head; i < queue.entries.size(); ++i) {
        if (i + kAhead < queue.entries.size()) __builtin_prefetch(&key_of(queue.entries[i + kAhead].slot));
        const Entry entry = queue.entries[i];
        queue.entries[kept] = entry;  // without a branch: half of them go
        kept += static_cast<std::size_t>(entry.key() == key_of(entry.slot));
      }
      num_entries_ -= static_cast<int64_t>(queue.size() - kept);
      queue.entries.resize(kept);
      queue.head = 0;
    }
  }
  void clear() {
    for (Queue& queue : queues_) {
      queue.entries.clear();
      queue.head = 0;
    }
    num_entries_ = 0;
  }

  /// Entries, those to be passed over included.
  int64_t num_entries() const { return num_entries_; }
  int64_t bytes() const { return num_entries_ * static_cast<int64_t>(sizeof(Entry)); }

 private:
  static constexpr std::size_t kAhead = 16;
  struct Entry {  // 12 bytes
    uint32_t key_low;
    uint32_t key_high;
    int32_t slot;

    int64_t key() const { return static_cast<int64_t>(key_high) << 32 | key_low; }
  };
  struct Queue {
    std::vector<Entry> entries;
    std::size_t head = 0;

    std::size_t size() const { return entries.size() - head; }
  };

  template <typename KeyOf, typename MayGo>
  void take_from(Queue& queue, std::size_t size, const KeyOf& key_of, const MayGo& may_go,
                 std::vector<int32_t>& out) {
    const std::size_t before = queue.size();
    stay_.clear();
    for (; out.size() < size && queue.head < queue.entries.size(); ++queue.head) {
      if (queue.head + kAhead < queue.entries.size())
        __builtin_prefetch(&key_of(queue.entries[queue.head + kAhead].slot));
      const Entry entry = queue.entries[queue.head];
      if (entry.key() != key_of(entry.slot)) continue;
      if (may_go(entry.slot)) {
        out.push_back(entry.slot);
      } else {
        stay_.push_back(entry);
      }
    }
    while (!stay_.empty()) {
      queue.entries[--queue.head] = stay_.back();
      stay_.pop_back();
    }
    num_entries_ -= static_cast<int64_t>(before - queue.size());
    shrink(queue);
  }

  /// Moves the entries to the front once as many have left: at most one move an entry.
  static void shrink(Queue& queue) {
    if (queue.head < queue.size()) return;
    queue.entries.erase(queue.entries.begin(),
                        queue.entries.begin() + static_cast<std::ptrdiff_t>(queue.head));
    queue.head = 0;
  }

  std::vector<Queue> queues_;
  std::vector<Entry> stay_;
  int64_t num_entries_ = 0;
};

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
  void restore(const int64_t* id, const int64_t* key, int64_t table_size, CacheLookup& out);

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
  const int64_t& key(int32_t s) const { return by_use_ ? held_[s].used : came_[s]; }
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

  const bool counts_uses_;  ///< Slots are ordered by how often they were asked for,
  const bool by_use_;       ///< then by when they were last, and not by when they came.
  const bool is_given_;     ///< What is asked for and missing is not admitted by itself.
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
