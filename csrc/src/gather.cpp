#include "tgflow/gather.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrainBytes = 1 << 20;  // least bytes of rows for another thread

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
  const auto bytes = static_cast<size_t>(table.row_bytes);
  const int64_t ahead = rows_ahead(bytes);
  parallel_for(n, grain(table.row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < end && id[i + ahead] >= 0 && id[i + ahead] < table.size) {
        prefetch_row(table.rows + id[i + ahead] * table.row_bytes, bytes);
      }
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
