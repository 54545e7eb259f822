// Rows out of the cache and into it, and what goes with them.
#include <algorithm>
#include <cstring>

#include "tgflow/row_cache.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr std::size_t kAheadBytes = 6 << 10;  // asked for before they are read, as in gather.cpp
constexpr int64_t kGrain = 4096;              // rows
constexpr std::size_t kLine = 64;

void prefetch(const char* row, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(row + offset);
}

/// The lookup whose memory this thread uses again.
CacheLookup& own_lookup() {
  thread_local CacheLookup lookup;
  return lookup;
}

}  // namespace

void RowCache::copy(const CacheLookup& lookup, const MissRows& from, char* out) {
  const std::size_t bytes = row_bytes_;
  const auto missing = [&](std::size_t r) {
    return from.rows + (from.by_id ? static_cast<std::size_t>(lookup.miss[r]) : r) * bytes;
  };
  const auto row_of = [&](int32_t source) -> const char* {
    if (source >= 0) return row(source);
    return source == CacheLookup::kNothing ? nullptr : missing(CacheLookup::miss_of(source));
  };
  const int32_t* source = lookup.source.data();
  const auto ahead = static_cast<int64_t>(std::clamp<std::size_t>(kAheadBytes / bytes, 2, 32));
  parallel_for(static_cast<int64_t>(lookup.source.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < end) {
        if (const char* next = row_of(source[i + ahead])) prefetch(next, bytes);
      }
      char* to = out + static_cast<std::size_t>(i) * bytes;
      if (const char* read = row_of(source[i])) {
        std::memcpy(to, read, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
      if (source[i] >= CacheLookup::kNothing || lookup.puts_after) continue;
      const std::size_t r = CacheLookup::miss_of(source[i]);
      if (lookup.admit[r] >= 0 && lookup.first[r] == i) std::memcpy(row(lookup.admit[r]), to, bytes);
    }
  });
  if (!lookup.source.empty() && !lookup.puts_after) return;
  parallel_for(static_cast<int64_t>(lookup.admit.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
      if (lookup.admit[r] >= 0) std::memcpy(row(lookup.admit[r]), missing(r), bytes);
    }
  });
}

void RowCache::gather(const char* table, int64_t table_size, const int64_t* id, int64_t n, char* out) {
  CacheLookup& lookup = own_lookup();
  look_up(id, n, table_size, lookup);
  copy(lookup, {table, true}, out);
  finish(lookup, true);
}

}  // namespace tgflow
