// Rows that were computed before, found again by what they are of.
#pragma once

#include <cstdint>
#include <mutex>

#include "tgflow/detail/frontier_query.hpp"
#include "tgflow/hash_table.hpp"
#include "tgflow/huge_array.hpp"

namespace tgflow {

/// What rows are of: a layer's, each of a query.
struct MemoKeys {
  int64_t layer;
  int64_t size;
  const node_t* node;       ///< [size]
  const tick_t* t;          ///< [size]
  const int64_t* position;  ///< [size]

  FrontierQuery query(int64_t i) const { return {node[i], t[i], position[i]}; }
};

/// Rows of one width within a budget of bytes. Where that is full, a row goes that was not asked for since
/// the last time round (CLOCK: a second chance for each that was).
///
/// Rows have a stamp of the world that they were computed in. A later stamp forgets all of them; with an
/// earlier one nothing is found or added. Any number of threads may call.
class RowMemo {
 public:
  /// Throws std::invalid_argument unless there is room for a row of `dim` in `budget` bytes.
  RowMemo(int64_t dim, int64_t budget);

  /// Copies the rows that there are to their places among `out`, [size, dim]; writes which there are not to
  /// `missing`, [size], ascending, and returns how many.
  int64_t find(int64_t stamp, const MemoKeys& keys, float* out, int64_t* missing);

  /// Adds rows, [size, dim]; those that are there stay as they are.
  void add(int64_t stamp, const MemoKeys& keys, const float* rows);

  int64_t dim() const { return dim_; }
  int64_t size() const;
  /// Never more than the budget, and all of it taken at once.
  int64_t bytes() const { return places_.bytes() + slots_.bytes() + rows_.bytes(); }

 private:
  struct Slot {
    FrontierQuery query;
    int64_t layer;
    uint32_t tag;
    bool was_asked;
  };

  static uint32_t tag_of(const FrontierQuery& query, int64_t layer);
  void move_to(int64_t stamp);
  int32_t slot_of(const FrontierQuery& query, int64_t layer, uint32_t tag) const;
  int32_t free_slot();

  mutable std::mutex mutex_;
  const int64_t dim_;
  HugeArray<Slot> slots_;
  IdIndex places_;
  HugeArray<float> rows_;
  int64_t stamp_ = 0;
  int32_t size_ = 0;
  int32_t hand_ = 0;  ///< The slot that is looked at next, where all are taken.
};

}  // namespace tgflow
