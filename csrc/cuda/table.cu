// Rows of a table by id, in device memory or in place in host memory: one kernel per width in which rows
// can be written. Gathers read 16 bytes per lane, from whole 128-byte lines; scatters are in the order of a
// stream.
#include "tgflow/cuda/table_view.hpp"
#include "tgflow/cuda/warp.hpp"
#include "tgflow/types.hpp"

using namespace tgflow;

constexpr int64_t kLineBytes = 128;  ///< Most bytes per request to host memory or the cache.
constexpr int64_t kPieceBytes = 16;  ///< The widest access of a lane.

/// A row as pieces starting at its first line: lanes that read adjacent pieces request each
/// line once, for any start (PyTorch-Direct, arXiv:2103.03330, shifts its lanes in this way).
struct LinedRow {
  const char* line;  ///< Null: a row of zeros.
  int64_t begin;     ///< Start of the row, in bytes after `line`.
  int64_t end;

  /// Whether the piece `at` bytes after the line contains part of the row. A piece never crosses a page, so
  /// its other bytes can be read.
  TGFLOW_HD bool has_piece(int64_t at) const { return at + kPieceBytes > begin && at < end; }
};

/// A row that has no pieces.
TGFLOW_HD inline LinedRow no_row() { return {nullptr, 0, 0}; }

TGFLOW_HD inline LinedRow lined_row(const char* row, int64_t row_bytes) {
  const int64_t begin = static_cast<int64_t>(reinterpret_cast<uint64_t>(row) % kLineBytes);
  return {row - begin, begin, begin + row_bytes};
}

TGFLOW_HD inline LinedRow zero_row(int64_t row_bytes) { return {nullptr, 0, row_bytes}; }

/// Bytes, from their first line on, that contain all rows starting at multiples of `alignment`, at most 16.
TGFLOW_HD inline int64_t lined_span(int64_t row_bytes, int64_t alignment) {
  return row_bytes + kLineBytes - alignment;
}

/// Writes the part of `row` in piece `at` to its place in `out`, in units that divide the starts of
/// rows, their length, and the address of `out`.
template <typename Part, typename Piece>
TGFLOW_HD void put_piece(const LinedRow& row, int64_t at, const Piece& piece, char* out) {
  const Part* parts = reinterpret_cast<const Part*>(&piece);
  for (int64_t i = 0; i < kPieceBytes / static_cast<int64_t>(sizeof(Part)); ++i) {
    const int64_t from = at + i * static_cast<int64_t>(sizeof(Part));
    if (from >= row.begin && from < row.end) *reinterpret_cast<Part*>(out + from - row.begin) = parts[i];
  }
}

/// Arguments of a gather, or of a scatter; tgflow/cuda/rows.py has the same fields.
struct RowCopy {
  const TableView* table;  ///< Readable up to the end of the last line of its rows.
  int64_t row_bytes;
  const int64_t* id;  ///< In a scatter, a duplicate id leaves a mix of its rows.
  int64_t num_ids;
  char* rows;      ///< [num_ids, row_bytes], written by a gather and read by a scatter.
  int64_t* wrong;  ///< Set to an id that is out of range: its row is zeros, or skipped.
  int64_t lanes;   ///< Per row, a power of two up to a warp's 32; of a gather from 8, a line's pieces.
};

__device__ inline LinedRow find_row(const RowCopy& g, const TableView& table, int64_t i) {
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

/// Copies rows, `kTogether` at a time by the same lanes, so that as many reads are in flight at once.
/// `Part` is the type that `put_piece` writes.
template <typename Part>
__device__ void gather(const RowCopy& g) {
  constexpr int kTogether = 4;
  const TableView table = read_view(g.table);
  const int64_t lane = thread_index() % g.lanes;
  const int64_t step = thread_count() / g.lanes * kTogether;
  const int64_t span = lined_span(g.row_bytes, sizeof(Part));
  for (int64_t first = thread_index() / g.lanes * kTogether; first < g.num_ids; first += step) {
    LinedRow row[kTogether];
    for (int j = 0; j < kTogether; ++j) row[j] = find_row(g, table, first + j);
    for (int64_t at = lane * kPieceBytes; at < span; at += g.lanes * kPieceBytes) {
      longlong2 piece[kTogether];
      for (int j = 0; j < kTogether; ++j) piece[j] = read_piece(row[j], at);
      for (int j = 0; j < kTogether; ++j) {
        put_piece<Part>(row[j], at, piece[j], g.rows + (first + j) * g.row_bytes);
      }
    }
  }
}

KERNELS_BY_PART(256, gather, (RowCopy copy), (copy))

/// Copies rows, in parts that divide their addresses and widths.
template <typename Part>
__device__ void scatter(const RowCopy& s) {
  const TableView table = read_view(s.table);
  const int64_t lane = thread_index() % s.lanes;
  const int64_t step = thread_count() / s.lanes;
  const int64_t parts = s.row_bytes / static_cast<int64_t>(sizeof(Part));
  for (int64_t i = thread_index() / s.lanes; i < s.num_ids; i += step) {
    const int64_t id = s.id[i];
    if (id < 0 || id >= table.size) {
      *s.wrong = id;
      continue;
    }
    Part* row = reinterpret_cast<Part*>(const_cast<char*>(table.rows) + id * s.row_bytes);
    const Part* from = reinterpret_cast<const Part*>(s.rows + i * s.row_bytes);
    for (int64_t p = lane; p < parts; p += s.lanes) row[p] = from[p];
  }
}

/// One thread: publishes the address and number of a table's rows.
extern "C" __global__ void table_publish(TableView* view, const char* rows, int64_t size) {
  store_release(&view->rows, rows);
  store_release(&view->size, size);
}

KERNELS_BY_PART(256, scatter, (RowCopy copy), (copy))
