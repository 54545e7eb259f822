#include "tgflow/gather.hpp"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kAhead = 4;     // rows asked for before they are read: they lie anywhere in memory
constexpr int64_t kGrain = 4096;  // rows
constexpr std::size_t kLine = 64;

void prefetch(const RowTable& table, int64_t id, std::size_t bytes) {
  if (id < 0 || id >= table.size) return;
  const char* row = reinterpret_cast<const char*>(table.rows + id * table.dim);
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(row + offset);
}

void copy_row(const RowTable& table, int64_t id, std::size_t bytes, float* out) {
  if (id >= table.size) {
    throw std::out_of_range("id " + std::to_string(id) + " is not in a table of " +
                            std::to_string(table.size) + " rows");
  }
  if (id < 0) {
    std::memset(out, 0, bytes);
  } else {
    std::memcpy(out, table.rows + id * table.dim, bytes);
  }
}

}  // namespace

void gather_rows(const RowTable& table, const int64_t* id, int64_t n, float* out) {
  const auto bytes = static_cast<std::size_t>(table.dim) * sizeof(float);
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) prefetch(table, id[i + kAhead], bytes);
      copy_row(table, id[i], bytes, out + i * table.dim);
    }
  });
}

}  // namespace tgflow
