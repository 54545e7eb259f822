// Rows of what is known about ids, found by hash, in large pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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

}  // namespace tgflow
