#include "tgflow/gather.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kAheadBytes = 6 << 10;  // asked for before they are read: rows lie anywhere in memory
constexpr int64_t kGrainBytes = 1 << 20;  // of rows, for which it pays to wake another thread
constexpr int64_t kLine = 64;

void prefetch(const RowTable& table, int64_t id) {
  if (id < 0 || id >= table.size) return;
  const std::byte* row = table.rows + id * table.row_bytes;
  for (int64_t offset = 0; offset < table.row_bytes; offset += kLine) __builtin_prefetch(row + offset);
}

void copy_row(const RowTable& table, int64_t id, std::byte* out) {
  const auto bytes = static_cast<size_t>(table.row_bytes);
  if (id >= table.size) {
    throw std::out_of_range("id " + std::to_string(id) + " is not in a table of " +
                            std::to_string(table.size) + " rows");
  }
  if (id < 0) {
    std::memset(out, 0, bytes);
  } else {
    std::memcpy(out, table.rows + id * table.row_bytes, bytes);
  }
}

int64_t grain(int64_t row_bytes) { return std::max<int64_t>(kGrainBytes / row_bytes, 1); }

}  // namespace

void gather_rows(const RowTable& table, const int64_t* id, int64_t n, std::byte* out) {
  const int64_t ahead = std::clamp<int64_t>(kAheadBytes / table.row_bytes, 2, 32);
  parallel_for(n, grain(table.row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < end) prefetch(table, id[i + ahead]);
      copy_row(table, id[i], out + i * table.row_bytes);
    }
  });
}

void scatter_rows(std::byte* rows, int64_t row_bytes, const int64_t* id, int64_t n, const std::byte* from) {
  parallel_for(n, grain(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(rows + id[i] * row_bytes, from + i * row_bytes, static_cast<size_t>(row_bytes));
    }
  });
}

}  // namespace tgflow
