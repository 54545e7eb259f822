// How the lanes of a GPU share the reading of a row. Compiles under g++, nvcc and NVRTC: no `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

constexpr int64_t kLineBytes = 128;  ///< What one request to host memory, or to the cache, brings at most.
constexpr int64_t kPieceBytes = 16;  ///< The widest access of a lane.

/// A row as the pieces from the line on in which it begins: lanes that read pieces side by side ask for each
/// of its lines once, wherever it begins (PyTorch-Direct, arXiv:2103.03330, shifts its lanes in this way).
struct LinedRow {
  const char* line;  ///< Null: a row of zeros.
  int64_t begin;     ///< Of the row, in bytes behind `line`.
  int64_t end;

  /// Whether the piece `at` bytes behind the line holds some of the row. A piece never crosses a page, so
  /// that what it holds besides can be read.
  TGFLOW_HD bool has_piece(int64_t at) const { return at + kPieceBytes > begin && at < end; }
};

/// A row that has no pieces.
TGFLOW_HD inline LinedRow no_row() { return {nullptr, 0, 0}; }

TGFLOW_HD inline LinedRow lined_row(const char* row, int64_t row_bytes) {
  const int64_t begin = static_cast<int64_t>(reinterpret_cast<uint64_t>(row) % kLineBytes);
  return {row - begin, begin, begin + row_bytes};
}

TGFLOW_HD inline LinedRow zero_row(int64_t row_bytes) { return {nullptr, 0, row_bytes}; }

/// Bytes, from their first line on, in which all rows lie that begin at multiples of `alignment`, at most 16.
TGFLOW_HD inline int64_t lined_span(int64_t row_bytes, int64_t alignment) {
  return row_bytes + kLineBytes - alignment;
}

/// Writes what piece `at` of `row` holds of it to its place in `out`, in parts of a width that divides where
/// rows begin, how long they are, and where `out` is.
template <typename Part, typename Piece>
TGFLOW_HD void put_piece(const LinedRow& row, int64_t at, const Piece& piece, char* out) {
  const Part* parts = reinterpret_cast<const Part*>(&piece);
  for (int64_t i = 0; i < kPieceBytes / static_cast<int64_t>(sizeof(Part)); ++i) {
    const int64_t from = at + i * static_cast<int64_t>(sizeof(Part));
    if (from >= row.begin && from < row.end) *reinterpret_cast<Part*>(out + from - row.begin) = parts[i];
  }
}

}  // namespace tgflow
