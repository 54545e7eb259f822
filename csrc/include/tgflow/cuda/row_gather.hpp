// Rows by id, read in place wherever the GPU can read. Device code alone.
#pragma once

#include "tgflow/cuda/table_view.hpp"
#include "tgflow/cuda/tile.hpp"
#include "tgflow/detail/lined_row.hpp"

namespace tgflow {

/// What a gather reads and writes; tgflow/cuda/rows.py has it field by field.
struct RowGather {
  const TableView* table;  ///< Memory up to the end of the last line of its rows can be read.
  int64_t row_bytes;
  const int64_t* id;
  int64_t num_ids;
  char* out;       ///< [num_ids, row_bytes]
  int64_t* wrong;  ///< Becomes an id that is not in the table; its row is zeros.
  int64_t lanes;   ///< That share a row: a power of two from 8, a line's pieces, to 32, a warp.
};

__device__ inline LinedRow find_row(const RowGather& g, const TableView& table, int64_t i) {
  if (i >= g.num_ids) return no_row();
  const int64_t id = g.id[i];
  if (id >= table.size) *g.wrong = id;
  if (id < 0 || id >= table.size) return zero_row(g.row_bytes);
  return lined_row(table.rows + id * g.row_bytes, g.row_bytes);
}

__device__ inline longlong2 read_piece(const LinedRow& row, int64_t at) {
  if (row.line == nullptr || !row.has_piece(at)) return {0, 0};
  return __ldcs(reinterpret_cast<const longlong2*>(row.line + at));
}

/// Copies rows, `kTogether` at a time by the same lanes: that many reads are on their way before one is
/// waited for. `Part` is the type that `put_piece` writes.
template <typename Part>
__device__ void gather_rows(const RowGather& g) {
  constexpr int kTogether = 4;
  const TableView table = read_view(g.table);
  const int64_t lane = thread_index() % g.lanes;
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x) / g.lanes * kTogether;
  const int64_t span = lined_span(g.row_bytes, sizeof(Part));
  for (int64_t first = thread_index() / g.lanes * kTogether; first < g.num_ids; first += step) {
    LinedRow row[kTogether];
    for (int j = 0; j < kTogether; ++j) row[j] = find_row(g, table, first + j);
    for (int64_t at = lane * kPieceBytes; at < span; at += g.lanes * kPieceBytes) {
      longlong2 piece[kTogether];
      for (int j = 0; j < kTogether; ++j) piece[j] = read_piece(row[j], at);
      for (int j = 0; j < kTogether; ++j) {
        put_piece<Part>(row[j], at, piece[j], g.out + (first + j) * g.row_bytes);
      }
    }
  }
}

}  // namespace tgflow
