// Rows out of the cache and into it, and what goes with them.
#include <algorithm>
#include <cstring>

#include "row_copy.hpp"
#include "tgflow/row_cache.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrain = 4096;  // rows

/// The lookup whose memory this thread uses again.
CacheLookup& own_lookup() {
  thread_local CacheLookup lookup;
  return lookup;
}

/// Where the row of a miss is.
const char* missing(const CacheLookup& lookup, const MissRows& from, std::size_t r, std::size_t bytes) {
  const auto place = from.by_id ? static_cast<std::size_t>(lookup.miss[r] - from.first) : r;
  return from.rows + place * bytes;
}

}  // namespace

void RowCache::copy(const CacheLookup& lookup, const MissRows& from, char* out) {
  copy_rest(lookup, from, out);
  bring(lookup, from, out);
  for (const int32_t i : lookup.again) {
    const std::size_t r = CacheLookup::miss_of(lookup.source[static_cast<std::size_t>(i)]);
    copy_row(missing(lookup, from, r, row_bytes_), row_bytes_,
             out + static_cast<std::size_t>(i) * row_bytes_);
  }
}

/// The rows that are not there yet, and with them the admitted ones to their slots.
void RowCache::copy_rest(const CacheLookup& lookup, const MissRows& from, char* out) {
  const std::size_t bytes = row_bytes_;
  const auto row_at = [&](int64_t i) -> const char* {
    const int32_t source = lookup.source[static_cast<std::size_t>(i)];
    if (source >= 0) return row(source);
    if (source == CacheLookup::kNothing) return nullptr;
    return missing(lookup, from, CacheLookup::miss_of(source), bytes);
  };
  const int64_t ahead = rows_ahead(bytes), copied = lookup.copied;
  parallel_for(static_cast<int64_t>(lookup.source.size()) - copied, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = copied + begin; i < copied + end; ++i) {
      if (i + ahead < copied + end) {
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

/// The misses that `copy_rest` leaves: those among rows copied before, and those that only the cache takes.
void RowCache::bring(const CacheLookup& lookup, const MissRows& from, char* out) {
  const std::vector<int32_t>& first = lookup.first;
  const bool all = lookup.source.empty() || lookup.puts_after;
  const auto size = all ? static_cast<int64_t>(lookup.admit.size())
                        : std::lower_bound(first.begin(), first.end(), lookup.copied) - first.begin();
  const std::size_t bytes = row_bytes_;
  const auto row_at = [&](int64_t r) { return missing(lookup, from, static_cast<std::size_t>(r), bytes); };
  const int64_t ahead = rows_ahead(bytes);
  parallel_for(size, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (r + ahead < end) prefetch_row(row_at(r + ahead), bytes);
      const auto number = static_cast<std::size_t>(r);
      if (!all) std::memcpy(out + static_cast<std::size_t>(first[number]) * bytes, row_at(r), bytes);
      if (lookup.admit[number] >= 0) std::memcpy(row(lookup.admit[number]), row_at(r), bytes);
    }
  });
}

void RowCache::gather(const char* table, int64_t table_size, const int64_t* id, int64_t n, char* out) {
  CacheLookup& lookup = own_lookup();
  look_up(id, n, table_size, lookup, out);
  copy(lookup, {table, true}, out);
  finish(lookup, true);
}

}  // namespace tgflow
