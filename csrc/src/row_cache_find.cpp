// Looking ids up: where each is, and that it has been asked for.
#include <stdexcept>
#include <string>

#include "row_cache_begun.hpp"
#include "row_copy.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kMaxIds = INT32_MAX - 2;
constexpr int64_t kAhead = 16;
constexpr int64_t kTurn = 256;    // rows that are copied before others that wait have their turn
constexpr int64_t kGrain = 4096;  // ids that are worth a thread
constexpr int32_t kBusy = -2;     // another gather is bringing this row in
constexpr int64_t kFewMisses = 512;

}  // namespace

void RowCache::check_ids(const int64_t* id, int64_t n, int64_t table_size) {
  if (n > kMaxIds) throw std::invalid_argument("a gather has at most 2^31 - 3 ids, got " + std::to_string(n));
  int64_t room = 0;
  for (int64_t i = 0; i < n; ++i) room |= table_size - 1 - id[i];  // negative if one of them is
  if (room >= 0) return;
  throw std::out_of_range("id " + std::to_string(*std::max_element(id, id + n)) + " is not in a table of " +
                          std::to_string(table_size) + " rows");
}

int32_t RowCache::find(int64_t id) const {
  return index_.find(id_tag(id), [&](int32_t s) { return held_[s].id == id; });
}

void RowCache::find(const int64_t* id, int64_t n, char* rows, CacheLookup& out) {
  out.source.resize(static_cast<std::size_t>(n));
  numbers_.reset(kFewMisses);
  const bool alone = at_work_.size() == 1;  // else the lock is for looking up: others copy meanwhile
  if (rows == nullptr || !alone || (n > kGrain && num_threads() > 1)) {
    find_all(id, n, out);
  } else {
    find_and_copy(id, n, rows, out);
  }
}

inline void RowCache::use(int32_t s, int64_t position) {
  held_[s].used = position;
  ++counts_.hits;
  if (!traits_.by_use) return;
  if (traits_.counts_uses && uses_[s] < kMostUses) ++uses_[s];
  order_.push(traits_.counts_uses ? uses_[s] : 0, position, s);
}

/// All look-ups first, on all threads; then their uses and the misses, in order.
void RowCache::find_all(const int64_t* id, int64_t n, CacheLookup& out) {
  constexpr int64_t kChunk = 256;
  int32_t* slot = out.source.data();
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kChunk) find_chunk(id + i, std::min(kChunk, end - i), slot + i);
  });
  const bool alone = at_work_.size() == 1;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && slot[i + kAhead] >= 0) {
      __builtin_prefetch(&held_[slot[i + kAhead]], 1);
      if (!alone) __builtin_prefetch(&came_[slot[i + kAhead]]);
    }
    note(id[i], i, alone, out);
  }
}

/// Step by step for all of them, so that what one step reads is under way while the step before works.
void RowCache::find_chunk(const int64_t* id, int64_t n, int32_t* slot) const {
  for (int64_t i = 0; i < n; ++i) index_.prefetch(id_tag(id[i]));
  for (int64_t i = 0; i < n; ++i) {
    slot[i] = index_.find(id_tag(id[i]), [](int32_t) { return true; });
    if (slot[i] >= 0) __builtin_prefetch(&held_[slot[i]]);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (slot[i] >= 0 && held_[slot[i]].id != id[i]) slot[i] = find(id[i]);
  }
}

/// Looks up and copies what is found in one flow: while a row is copied, the next ones are under way with
/// what is known of their slots, and behind them their entries. For a gather that is alone at work; copies no
/// more as soon as others wait.
void RowCache::find_and_copy(const int64_t* id, int64_t n, char* rows, CacheLookup& out) {
  constexpr int64_t kRing = 64;
  const int64_t step = std::min(rows_ahead(row_bytes_), kRing / 4);
  int32_t* slot = out.source.data();
  uint32_t hash[kRing];
  for (int64_t i = -3 * step; i < n; ++i) {
    const bool copies = out.copied == std::max<int64_t>(i, 0);
    if (const int64_t next = i + 3 * step; next < n) {
      hash[next % kRing] = id_tag(id[next]);
      index_.prefetch(hash[next % kRing]);
    }
    if (const int64_t next = i + 2 * step; next >= 0 && next < n) {
      slot[next] = index_.find(hash[next % kRing], [](int32_t) { return true; });
      if (slot[next] >= 0) {
        __builtin_prefetch(&held_[slot[next]], 1);
        if (copies) prefetch_row(row(slot[next]), row_bytes_);
      }
    }
    if (const int64_t next = i + step; next >= 0 && next < n) {
      if (slot[next] >= 0 && held_[slot[next]].id != id[next]) slot[next] = find(id[next]);
      note(id[next], next, true, out);
    }
    if (i < 0 || !copies || (i % kTurn == 0 && waiting_ != 0)) continue;
    copy_found(i, rows, out);
    ++out.copied;
  }
}

void RowCache::copy_found(int64_t i, char* rows, CacheLookup& out) const {
  const int32_t source = out.source[static_cast<std::size_t>(i)];
  if (source >= CacheLookup::kNothing) {
    copy_row(source < 0 ? nullptr : row(source), row_bytes_, rows + static_cast<std::size_t>(i) * row_bytes_);
  } else if (out.first[CacheLookup::miss_of(source)] != i) {
    out.again.push_back(static_cast<int32_t>(i));
  }
}

/// Takes note that place `i` asks for an id, after it has been looked up.
void RowCache::note(int64_t id, int64_t i, bool alone, CacheLookup& out) {
  const int32_t s = out.source[static_cast<std::size_t>(i)];
  if (s != IdIndex::kNone && (alone || !is_filling(s, out.begin))) {
    if (held_[s].used < out.begin) use(s, out.begin + i);
  } else if (id >= 0) {
    note_miss(id, i, s != IdIndex::kNone, out);
  }
}

/// Whether a gather at work, other than that which began at `begin`, brings this row in.
bool RowCache::is_filling(int32_t s, int64_t begin) const {
  return std::any_of(at_work_.begin(), at_work_.end(), [&](AtWork other) {
    return other.begin != begin && other.begin <= came_[s] && came_[s] < other.end;
  });
}

/// Numbers the misses; one that comes again keeps its number.
void RowCache::note_miss(int64_t id, int64_t i, bool busy, CacheLookup& out) {
  const auto next = static_cast<int32_t>(out.miss.size());
  numbers_.reserve_one(next, [&](int32_t r) { return id_tag(out.miss[static_cast<std::size_t>(r)]); });
  const int32_t number = numbers_.find_or_insert(
      id_tag(id), next, [&](int32_t r) { return out.miss[static_cast<std::size_t>(r)] == id; });
  out.source[static_cast<std::size_t>(i)] = CacheLookup::of_miss(static_cast<std::size_t>(number));
  if (number != next) return;
  out.miss.push_back(id);
  out.first.push_back(static_cast<int32_t>(i));
  out.admit.push_back(busy ? kBusy : CacheLookup::kNothing);
}

}  // namespace tgflow
