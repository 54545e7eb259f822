// Rows out of the cache and into it, and what goes with them.
#include <algorithm>
#include <cstring>

#include "row_copy.hpp"
#include "tgflow/row_cache.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrain = 4096;  // rows

/// Where the row of a miss is.
const char* missing(const CacheLookup& lookup, const MissRows& from, std::size_t r, std::size_t bytes) {
  const auto place = from.by_id ? static_cast<std::size_t>(lookup.miss[r] - from.first) : r;
  return from.rows + place * bytes;
}

}  // namespace

void RowCache::copy(const CacheLookup& lookup, const MissRows& from, char* out) {
  copy_asked(lookup, from, out);
  if (lookup.source.empty() || lookup.puts_after) put_admitted(lookup, from);
}

/// The rows asked for, and with them the admitted ones to their slots, unless these come after.
void RowCache::copy_asked(const CacheLookup& lookup, const MissRows& from, char* out) {
  const std::size_t bytes = row_bytes_;
  const auto row_at = [&](int64_t i) -> const char* {
    const int32_t source = lookup.source[static_cast<std::size_t>(i)];
    if (source >= 0) return row(source);
    if (source == CacheLookup::kNothing) return nullptr;
    return missing(lookup, from, CacheLookup::miss_of(source), bytes);
  };
  const int64_t ahead = rows_ahead(bytes);
  parallel_for(static_cast<int64_t>(lookup.source.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < end) {
        if (const char* next = row_at(i + ahead)) prefetch_row(next, bytes);
      }
      char* to = out + static_cast<std::size_t>(i) * bytes;
      copy_row(row_at(i), bytes, to);
      const int32_t source = lookup.source[static_cast<std::size_t>(i)];
      if (source >= CacheLookup::kNothing || lookup.puts_after) continue;
      const std::size_t r = CacheLookup::miss_of(source);
      if (lookup.admit[r] >= 0 && lookup.first[r] == i) std::memcpy(row(lookup.admit[r]), to, bytes);
    }
  });
}

/// The admitted rows to their slots.
void RowCache::put_admitted(const CacheLookup& lookup, const MissRows& from) {
  const std::size_t bytes = row_bytes_;
  const auto row_at = [&](int64_t r) { return missing(lookup, from, static_cast<std::size_t>(r), bytes); };
  const int64_t ahead = rows_ahead(bytes);
  parallel_for(static_cast<int64_t>(lookup.admit.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (r + ahead < end) prefetch_row(row_at(r + ahead), bytes);
      const int32_t slot = lookup.admit[static_cast<std::size_t>(r)];
      if (slot >= 0) std::memcpy(row(slot), row_at(r), bytes);
    }
  });
}

}  // namespace tgflow
