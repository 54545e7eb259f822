// Looking ids up: where each is, and that it has been asked for.
#include <stdexcept>
#include <string>

#include "row_cache_begun.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kMaxIds = INT32_MAX - 2;
constexpr int64_t kAhead = 16;
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

inline void RowCache::use(int32_t s, int64_t position) {
  held_[s].used = position;
  ++counts_.hits;
  if (!traits_.by_use) return;
  if (traits_.counts_uses && uses_[s] < kMostUses) ++uses_[s];
  order_.push(traits_.counts_uses ? uses_[s] : 0, position, s);
}

/// All look-ups first, on all threads; then their uses and the misses, in order.
void RowCache::find_all(const int64_t* id, int64_t n, CacheLookup& out) {
  out.source.resize(static_cast<std::size_t>(n));
  numbers_.reset(kFewMisses);
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
