// The hash tables of the core: open addressing with linear probing, in one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tgflow/detail/mix.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// Entries found by hash, in large pages that are at most half full. Erasing moves later entries back
/// into the gap, so that look-ups stay short after any number of insertions and removals.
///
/// An `Entry` is plain; `Entry{}` is empty, which `is_empty()` tests, and `hash()` is its insertion hash.
template <typename Entry>
class HashTable {
 public:
  /// Has room for `capacity` entries, and at least `places_per_entry` places for each; in a file with `disk`.
  explicit HashTable(int64_t capacity, int64_t places_per_entry = 2,
                     std::shared_ptr<DiskMemory> disk = nullptr)
      : entries_(num_places(capacity * places_per_entry), Entry{}, std::move(disk)),
        mask_(entries_.size() - 1) {}

  int64_t bytes() const { return entries_.bytes(); }

  void prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[home(hash)]); }

  /// The entry under `hash` that `is_it(entry)` accepts, or the empty one.
  template <typename IsIt>
  Entry find(uint64_t hash, const IsIt& is_it) const {
    for (int64_t i = home(hash);; i = (i + 1) & mask_) {
      const Entry entry = entries_[i];
      if (entry.is_empty() || is_it(entry)) return entry;
    }
  }

  /// As `find`; if there is none, inserts `entry` and returns the empty one.
  template <typename IsIt>
  Entry find_or_insert(uint64_t hash, Entry entry, const IsIt& is_it) {
    if (2 * (size_ + 1) > entries_.size()) grow();
    for (int64_t i = home(hash);; i = (i + 1) & mask_) {
      const Entry found = entries_[i];
      if (found.is_empty()) {
        entries_[i] = entry;
        ++size_;
        return found;
      }
      if (is_it(found)) return found;
    }
  }

  /// As `find_or_insert`, and replaces the entry by `entry` if there is one.
  template <typename IsIt>
  Entry exchange(uint64_t hash, Entry entry, const IsIt& is_it) {
    if (2 * (size_ + 1) > entries_.size()) grow();
    int64_t i = home(hash);
    while (!entries_[i].is_empty() && !is_it(entries_[i])) i = (i + 1) & mask_;
    size_ += entries_[i].is_empty();
    return std::exchange(entries_[i], entry);
  }

  /// Removes the entries that `is_gone(entry)` accepts, but for a few at the ends of the array.
  template <typename IsGone>
  void erase_if(const IsGone& is_gone) {
    for (int64_t i = 0; i < entries_.size();) {
      if (entries_[i].is_empty() || !is_gone(entries_[i])) {
        ++i;
      } else {
        close_gap(i);
        --size_;
      }
    }
  }

  /// Removes the entry under `hash` that `is_it(entry)` accepts; there must be one.
  template <typename IsIt>
  void erase(uint64_t hash, const IsIt& is_it) {
    int64_t i = home(hash);
    while (!is_it(entries_[i])) i = (i + 1) & mask_;
    close_gap(i);
    --size_;
  }

  void clear() {
    entries_.fill(Entry{});
    size_ = 0;
  }

 private:
  static int64_t num_places(int64_t wanted) {
    int64_t places = 16;
    while (places < wanted) places *= 2;
    return places;
  }

  int64_t home(uint64_t hash) const { return static_cast<int64_t>(hash) & mask_; }

  void close_gap(int64_t gap) {
    for (int64_t i = (gap + 1) & mask_; !entries_[i].is_empty(); i = (i + 1) & mask_) {
      const bool gap_is_before_its_home = ((i - home(entries_[i].hash())) & mask_) < ((i - gap) & mask_);
      if (gap_is_before_its_home) continue;
      entries_[gap] = entries_[i];
      gap = i;
    }
    entries_[gap] = Entry{};
  }

  void grow() {
    HugeArray<Entry> old(2 * entries_.size(), Entry{}, entries_.disk());
    std::swap(old, entries_);
    mask_ = entries_.size() - 1;
    for (int64_t i = 0; i < old.size(); ++i) {
      if (old[i].is_empty()) continue;
      int64_t j = home(old[i].hash());
      while (!entries_[j].is_empty()) j = (j + 1) & mask_;
      entries_[j] = old[i];
    }
  }

  HugeArray<Entry> entries_;
  int64_t mask_;
  int64_t size_ = 0;
};

/// Numbers from 0 on, found by the hash of their keys, which the caller stores. Of the hash an entry keeps
/// the `Tag`, which rules out most others without reading their keys.
template <typename Tag>
class HashIndex {
 public:
  static constexpr int32_t kNone = -1;

  explicit HashIndex(int64_t capacity = 0, int64_t places_per_entry = 2)
      : table_(capacity, places_per_entry) {}

  int64_t bytes() const { return table_.bytes(); }
  void prefetch(Tag tag) const { table_.prefetch(tag); }

  /// The number with this tag that `is_it(number)` accepts, or kNone.
  template <typename IsIt>
  int32_t find(Tag tag, const IsIt& is_it) const {
    return table_.find(tag, [&](Entry entry) { return entry.tag == tag && is_it(entry.number); }).number;
  }

  /// As `find`; if there is none, inserts and returns `number`.
  template <typename IsIt>
  int32_t find_or_insert(Tag tag, int32_t number, const IsIt& is_it) {
    const Entry found = table_.find_or_insert(
        tag, {tag, number}, [&](Entry entry) { return entry.tag == tag && is_it(entry.number); });
    return found.is_empty() ? number : found.number;
  }

  /// Adds a number that is not present.
  void insert(Tag tag, int32_t number) {
    table_.find_or_insert(tag, {tag, number}, [](Entry) { return false; });
  }

  /// Removes a number that is present.
  void erase(Tag tag, int32_t number) {
    table_.erase(tag, [&](Entry entry) { return entry.number == number; });
  }

  void clear() { table_.clear(); }

 private:
  struct Entry {
    Tag tag = 0;
    int32_t number = kNone;

    bool is_empty() const { return number == kNone; }
    uint64_t hash() const { return tag; }
  };

  HashTable<Entry> table_;
};

/// Slots and rows by their ids: half of an id's hash distinguishes nearly all ids.
using IdIndex = HashIndex<uint32_t>;

inline uint32_t id_tag(int64_t id) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(id))); }

/// Rows of a growing list, which has their keys: small, and quick to build for a batch. An entry is only
/// a row, so entries cannot be erased and the table does not grow by itself. Not a `HashTable`: its
/// size, tags and large pages would turn 10 ns per query of a frontier into 11 to 20.
class RowIndex {
 public:
  explicit RowIndex(int64_t capacity = 0) { reset(capacity); }

  /// Removes all rows; there is room for `capacity`.
  void reset(int64_t capacity) {
    std::size_t places = 16;
    while (places < 2 * static_cast<std::size_t>(capacity)) places *= 2;
    rows_.resize(places);
    std::memset(rows_.data(), 0xFF, places * sizeof(int32_t));  // kNone, at full speed in any build
  }

  /// Doubles the capacity if `num_rows` fill it; `hash_of(row)` is the hash of each of them.
  template <typename HashOf>
  void reserve_one(int32_t num_rows, const HashOf& hash_of) {
    if (2 * (static_cast<std::size_t>(num_rows) + 1) <= rows_.size()) return;
    reset(2 * num_rows + 1);
    for (int32_t row = 0; row < num_rows; ++row) {
      find_or_insert(hash_of(row), row, [](int32_t) { return false; });
    }
  }

  int64_t bytes() const { return static_cast<int64_t>(rows_.size() * sizeof(int32_t)); }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&rows_[hash & (rows_.size() - 1)]); }

  /// The row under `hash` that `is_it(row)` accepts, or -1.
  template <typename IsIt>
  int32_t find(uint64_t hash, const IsIt& is_it) const {
    const std::size_t last = rows_.size() - 1;
    std::size_t i = hash & last;
    while (rows_[i] != kNone && !is_it(rows_[i])) i = (i + 1) & last;
    return rows_[i];
  }

  /// The row under `hash` that `is_it(row)` accepts; if there is none, `next`, which is added. There must be
  /// room.
  template <typename IsIt>
  int32_t find_or_insert(uint64_t hash, int32_t next, const IsIt& is_it) {
    const std::size_t last = rows_.size() - 1;
    std::size_t i = hash & last;
    for (; rows_[i] != kNone; i = (i + 1) & last) {
      if (is_it(rows_[i])) return rows_[i];
    }
    return rows_[i] = next;
  }

 private:
  static constexpr int32_t kNone = -1;

  std::vector<int32_t> rows_;
};

/// Rows of a list that only grows and has their keys, in a table that is a half to three quarters
/// full. Beside a row, an entry has as many bits of the hash as the row leaves free: they rule out most
/// others without reading their keys, which would miss the cache.
class DenseIndex {
 public:
  int64_t bytes() const { return entries_.bytes(); }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[home(hash)]); }

  /// Holds the table in a file from now on, once it is large. Throws FileError without room for it.
  void hold_in(std::shared_ptr<DiskMemory> disk) {
    disk_ = std::move(disk);
    HugeArray<uint32_t> moved = made(entries_.size());
    std::copy_n(entries_.data(), entries_.size(), moved.data());
    entries_ = std::move(moved);
  }

  /// Enlarges the table by a half if `num_rows`, all existing ones, fill it; `hash_of(row)` is the hash
  /// of each of them.
  template <typename HashOf>
  void reserve_one(int32_t num_rows, const HashOf& hash_of) {
    if (2 * (int64_t{num_rows} + 1) <= entries_.size()) return;
    HugeArray<uint32_t> larger = made(entries_.size() + entries_.size() / 2);
    larger.fill(kEmpty);
    entries_ = std::move(larger);
    while (rows_ < entries_.size() - 1) rows_ = 2 * rows_ + 1;
    for (int32_t row = 0; row < num_rows; ++row) {
      find_or_insert(hash_of(row), row, [](int32_t) { return false; });
    }
  }

  /// The row under `hash` that `is_it(row)` accepts, or -1. Rarely calls it for rows with other hashes.
  template <typename IsIt>
  int32_t find(uint64_t hash, const IsIt& is_it) const {
    const uint32_t entry = entries_[place(hash, is_it)];
    return entry == kEmpty ? -1 : row_of(entry);
  }

  /// The row under `hash` that `is_it(row)` accepts; if there is none, `next`, which is added. There must be
  /// room.
  template <typename IsIt>
  int32_t find_or_insert(uint64_t hash, int32_t next, const IsIt& is_it) {
    uint32_t& entry = entries_[place(hash, is_it)];
    if (entry == kEmpty) entry = tag(hash) | static_cast<uint32_t>(next);
    return row_of(entry);
  }

 private:
  static constexpr uint32_t kEmpty = ~uint32_t{0};  // the bits of a row are never all ones

  /// Uses the upper half of a hash; the lower half has the tag.
  int64_t home(uint64_t hash) const {
    return static_cast<int64_t>((hash >> 32) * static_cast<uint64_t>(entries_.size()) >> 32);
  }
  uint32_t tag(uint64_t hash) const { return static_cast<uint32_t>(hash) & ~rows_; }
  int32_t row_of(uint32_t entry) const { return static_cast<int32_t>(entry & rows_); }

  /// The place of the row, or the empty place where it belongs.
  template <typename IsIt>
  int64_t place(uint64_t hash, const IsIt& is_it) const {
    const uint32_t wanted = tag(hash);
    int64_t i = home(hash);
    while (entries_[i] != kEmpty) {
      if ((entries_[i] & ~rows_) == wanted && is_it(row_of(entries_[i]))) break;
      if (++i == entries_.size()) i = 0;
    }
    return i;
  }

  HugeArray<uint32_t> made(int64_t size) const {
    return HugeArray<uint32_t>(size, size < kLeastOnDisk ? nullptr : disk_);
  }

  static constexpr int64_t kLeastOnDisk = int64_t{1} << 18;  // a mapping of fewer is not worth it

  std::shared_ptr<DiskMemory> disk_;
  HugeArray<uint32_t> entries_{16, kEmpty};
  uint32_t rows_ = 15;  ///< Bits of an entry that hold its row.
};

/// A set of keys below 2^64 - 1.
class KeySet {
 public:
  explicit KeySet(int64_t capacity = 0, std::shared_ptr<DiskMemory> disk = nullptr)
      : table_(capacity, 2, std::move(disk)) {}

  /// Adds `key`; false if it was present.
  bool insert(uint64_t key) { return table_.find_or_insert(mix64(key), {key}, IsKey{key}).is_empty(); }

  bool contains(uint64_t key) const { return !table_.find(mix64(key), IsKey{key}).is_empty(); }

 private:
  struct Entry {
    uint64_t key = ~0ULL;

    bool is_empty() const { return key == ~0ULL; }
    uint64_t hash() const { return mix64(key); }
  };

  struct IsKey {
    uint64_t key;

    bool operator()(Entry entry) const { return entry.key == key; }
  };

  HashTable<Entry> table_;
};

}  // namespace tgflow
