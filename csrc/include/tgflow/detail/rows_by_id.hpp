// Rows of what is known about ids, found by hash: open addressing, large pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tgflow/hash.hpp"
#include "tgflow/huge_array.hpp"

namespace tgflow {

/// A `Row` of each id that is there; ids are at least 0, and the row's `id`. A row has a number, and is where
/// it is until it is erased; then its number is another's.
template <typename Row>
class RowsById {
 public:
  static constexpr int32_t kNone = -1;

  Row& operator[](int32_t number) { return rows_[number]; }
  const Row& operator[](int32_t number) const { return rows_[number]; }

  /// Ask for the memory of a look-up to come; the second one later, for what the first one finds. A compiler
  /// that does not inline the second takes it for one without effect, and drops its calls.
  void prefetch_index(int64_t id) const { __builtin_prefetch(&index_[home(hash_of(id))]); }
  [[gnu::always_inline]] void prefetch_row(int64_t id) const {
    const uint32_t hash = hash_of(id);
    for (int64_t i = home(hash); index_[i].number >= 0; i = (i + 1) & (index_.size() - 1)) {
      if (index_[i].hash == hash) return prefetch(index_[i].number);
    }
  }
  void prefetch(int32_t number) const { __builtin_prefetch(&rows_[number], 1); }

  /// The number of `id`, which gets a row made by `Row{id}` if it had none.
  int32_t add(int64_t id) {
    if (2 * (size_ + 1) > index_.size()) grow_index();
    Entry& entry = index_[seek(id)];
    if (entry.number >= 0) return entry.number;
    int32_t number;
    if (free_.empty()) {
      if (num_rows_ == rows_.size()) grow_rows();
      number = static_cast<int32_t>(num_rows_++);
    } else {
      number = free_.back();
      free_.pop_back();
    }
    rows_[number] = Row{id};
    entry = {hash_of(id), number};
    ++size_;
    return number;
  }

  /// Removes a row. Entries behind its own move back into the gap, so that look-ups stay short.
  void erase(int32_t number) {
    const int64_t last = index_.size() - 1;
    int64_t gap = seek((*this)[number].id);
    for (int64_t i = (gap + 1) & last; index_[i].number >= 0; i = (i + 1) & last) {
      const bool gap_is_before_its_home = ((i - home(index_[i].hash)) & last) < ((i - gap) & last);
      if (gap_is_before_its_home) continue;
      index_[gap] = index_[i];
      gap = i;
    }
    index_[gap].number = kNone;
    free_.push_back(number);
    --size_;
  }

  int64_t bytes() const {
    return num_rows_ * static_cast<int64_t>(sizeof(Row)) + index_.bytes() +
           static_cast<int64_t>(free_.size() * sizeof(int32_t));
  }

 private:
  /// Low bits of the id's hash: they tell home, and most other ids apart, without a look at their rows.
  struct Entry {
    uint32_t hash;
    int32_t number;
  };

  static uint32_t hash_of(int64_t id) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(id))); }
  int64_t home(uint32_t hash) const { return hash & (index_.size() - 1); }

  /// Where the number of `id` is, or would be.
  int64_t seek(int64_t id) const {
    const uint32_t hash = hash_of(id);
    for (int64_t i = home(hash);; i = (i + 1) & (index_.size() - 1)) {
      const Entry entry = index_[i];
      if (entry.number < 0 || (entry.hash == hash && rows_[entry.number].id == id)) return i;
    }
  }

  void grow_index() {
    HugeArray<Entry> old(2 * index_.size(), {0, kNone});
    std::swap(old, index_);
    for (int64_t i = 0; i < old.size(); ++i) {
      if (old[i].number < 0) continue;
      int64_t j = home(old[i].hash);
      while (index_[j].number >= 0) j = (j + 1) & (index_.size() - 1);
      index_[j] = old[i];
    }
  }

  void grow_rows() {
    HugeArray<Row> rows(2 * rows_.size());
    std::memcpy(rows.data(), rows_.data(), static_cast<std::size_t>(rows_.bytes()));
    rows_ = std::move(rows);
  }

  HugeArray<Entry> index_{16, {0, kNone}};
  HugeArray<Row> rows_{16};
  int64_t num_rows_ = 0;       ///< That were ever there at once,
  std::vector<int32_t> free_;  ///< of which these are not there now.
  int64_t size_ = 0;
};

}  // namespace tgflow
