#include "tgflow/row_cache.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "tgflow/gather.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kPeriodSlots = 4;  // as in lfu_period of tgflow/graph/cache/contents.py
constexpr int64_t kMaxSlots = 1 << 30;
constexpr int64_t kPlacesPerSlot = 4;
constexpr uint8_t kMostUses = 255;  // equals LFU_MOST of tgflow/graph/cache/contents.py
constexpr int64_t kMaxIds = INT32_MAX - 2;
constexpr int64_t kAhead = 16;
constexpr int64_t kGrain = 4096;  // least number of ids or rows for another thread
constexpr int64_t kFewMisses = 512;
constexpr int kUsesShift = 48;
constexpr int64_t kPositions = (int64_t{1} << kUsesShift) - 1;

int64_t checked(int64_t capacity) {
  if (capacity < 0 || capacity >= kMaxSlots) {
    throw std::invalid_argument("a cache has at least 0 and below 2^30 rows, got " +
                                std::to_string(capacity));
  }
  return capacity;
}

void check_ids(const int64_t* id, int64_t n, int64_t table_size) {
  if (n > kMaxIds) throw std::invalid_argument("a gather has at most 2^31 - 3 ids, got " + std::to_string(n));
  int64_t room = 0;
  for (int64_t i = 0; i < n; ++i) room |= table_size - 1 - id[i];  // negative if one id is too large
  if (room >= 0) return;
  throw std::out_of_range("id " + std::to_string(*std::max_element(id, id + n)) + " is not in a table of " +
                          std::to_string(table_size) + " rows");
}

std::string at_row(int64_t r, int64_t id) {
  return "row " + std::to_string(r) + " (id " + std::to_string(id) + ")";
}

}  // namespace

RowCache::RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes)
    : counts_uses_(policy == CachePolicy::kLfu),
      by_use_(counts_uses_ || policy == CachePolicy::kLru),
      is_given_(policy == CachePolicy::kStatic || policy == CachePolicy::kGiven),
      row_bytes_(static_cast<std::size_t>(row_bytes)),
      rows_(checked(capacity) * row_bytes),
      held_(capacity, {kFree, 0}),
      came_(capacity, 0),
      uses_(counts_uses_ ? capacity : 0, 0),
      links_(capacity + (counts_uses_ ? int{kMostUses} + 2 : 2)),
      index_(capacity, kPlacesPerSlot) {
  sort_lists();
}

/// Starts a lookup with this many positions on the clock.
CacheLookup RowCache::begin(int64_t num_positions) {
  CacheLookup lookup;
  lookup.begin = lookup.come = clock_;
  clock_ += std::max<int64_t>(num_positions, 1);
  return lookup;
}

CacheLookup RowCache::look_up(const int64_t* id, int64_t n, int64_t table_size) {
  check_ids(id, n, table_size);
  const std::lock_guard lock(mutex_);
  CacheLookup found = begin(2 * n);
  find_all(id, n, found);
  found.come = found.begin + n;  // admitted rows rank after found rows
  const std::size_t admitted = is_given_ ? 0 : choose(found);
  counts_.misses += static_cast<int64_t>(found.miss.size());
  counts_.bypassed += static_cast<int64_t>(found.miss.size() - admitted);
  return found;
}

CacheLookup RowCache::preload(const int64_t* id, int64_t n, int64_t table_size) {
  check_ids(id, n, table_size);
  const std::lock_guard lock(mutex_);
  CacheLookup found = begin(2 * n);
  const int64_t hits = counts_.hits;
  find_all(id, n, found);
  counts_.hits = hits;
  found.come = found.begin + n;
  keep_admitted(found);
  counts_.preloaded += static_cast<int64_t>(found.miss.size());
  return found;
}

void RowCache::append(int64_t first, int64_t n, const char* rows) {
  if (is_given_) return;
  const std::lock_guard lock(mutex_);
  const int64_t size = std::min(n, capacity()), begin_id = first + n - size;
  CacheLookup coming = begin(size);
  for (int64_t i = 0; i < size; ++i) {
    if (find(begin_id + i) != IdIndex::kNone) continue;  // already admitted by a gather
    coming.miss.push_back(begin_id + i);
    coming.first.push_back(static_cast<int32_t>(i));
    coming.admit.push_back(CacheLookup::kNothing);
  }
  keep_admitted(coming);
  counts_.written += static_cast<int64_t>(coming.miss.size());
  admit(coming,
        [&](std::size_t r) { return rows + static_cast<std::size_t>(coming.miss[r] - first) * row_bytes_; });
}

/// Chooses slots for as many misses as fit, the first ones, and returns their number: slots in which this
/// gather found nothing.
std::size_t RowCache::choose(CacheLookup& out) const {
  std::size_t taken = 0;
  for (int32_t list = 0; list < num_lists(); ++list) {
    const int32_t end = end_of(list);
    for (int32_t s = links_[end].after; s != end && taken < out.miss.size(); s = links_[s].after) {
      if (held_[s].used < out.begin) out.admit[taken++] = s;
    }
  }
  return taken;
}

/// Chooses slots, and drops misses that are not admitted.
void RowCache::keep_admitted(CacheLookup& out) const {
  const std::size_t admitted = choose(out);
  out.source.clear();
  out.miss.resize(admitted);
  out.first.resize(admitted);
  out.admit.resize(admitted);
}

/// Copies the admitted rows into their slots; `row_at(r)` is the address of miss `r`'s row.
template <typename RowAt>
void RowCache::admit(const CacheLookup& lookup, const RowAt& row_at) {
  const int64_t before = admissions_;
  for (std::size_t r = 0; r < lookup.miss.size(); ++r) {
    const int32_t s = lookup.admit[r];
    if (s == CacheLookup::kNothing || (lookup.restores && held_[s].id != kFree)) continue;
    if (lookup.restores) {
      held_[s].id = lookup.miss[r];
      index_.insert(id_tag(lookup.miss[r]), s);
    } else {
      put(lookup.miss[r], s, lookup.come + lookup.first[r]);
    }
  }
  const int64_t period = std::max<int64_t>(kPeriodSlots * capacity(), 1);
  const bool halves = counts_uses_ && admissions_ / period > before / period;
  for (int64_t s = 0; halves && s < capacity(); ++s) uses_[s] = static_cast<uint8_t>(uses_[s] / 2);
  if (halves || lookup.restores) sort_lists();
  const int64_t ahead = rows_ahead(row_bytes_);
  parallel_for(static_cast<int64_t>(lookup.admit.size()), kGrain, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      if (r + ahead < end) prefetch_row(row_at(static_cast<std::size_t>(r + ahead)), row_bytes_);
      const int32_t s = lookup.admit[static_cast<std::size_t>(r)];
      if (s >= 0) std::memcpy(row(s), row_at(static_cast<std::size_t>(r)), row_bytes_);
    }
  });
}

void RowCache::put(int64_t id, int32_t s, int64_t position) {
  if (held_[s].id != kFree) {
    index_.erase(id_tag(held_[s].id), s);
    ++counts_.evicted;
  }
  index_.insert(id_tag(id), s);
  held_[s] = {id, position};
  came_[s] = position;
  if (counts_uses_) uses_[s] = 1;
  take_out(s);
  push_back(s);
  ++counts_.admitted;
  ++admissions_;
}

void RowCache::take_out(int32_t s) {
  const Link link = links_[s];
  links_[link.before].after = link.after;
  links_[link.after].before = link.before;
}

void RowCache::push_back(int32_t s) {
  Link& end = links_[end_of(list_of(s))];
  links_[s] = {end.before, end_of(list_of(s))};
  links_[end.before].after = s;
  end.before = s;
}

/// Rebuilds all lists: free slots by number, others by key.
void RowCache::sort_lists() {
  for (int32_t list = 0; list < num_lists(); ++list) links_[end_of(list)] = {end_of(list), end_of(list)};
  std::vector<int32_t> held;
  for (int32_t s = 0; s < capacity(); ++s) {
    if (held_[s].id == kFree) {
      push_back(s);
    } else {
      held.push_back(s);
    }
  }
  std::sort(held.begin(), held.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  for (const int32_t s : held) push_back(s);
}

int32_t RowCache::find(int64_t id) const {
  return index_.find(id_tag(id), [&](int32_t s) { return held_[s].id == id; });
}

inline void RowCache::use(int32_t s, int64_t position) {
  held_[s].used = position;
  ++counts_.hits;
  if (!by_use_) return;
  take_out(s);
  if (counts_uses_ && uses_[s] < kMostUses) ++uses_[s];
  push_back(s);
}

/// All look-ups first, on all threads; then uses and misses are counted, in order.
void RowCache::find_all(const int64_t* id, int64_t n, CacheLookup& out) {
  out.source.resize(static_cast<std::size_t>(n));
  numbers_.reset(kFewMisses);
  constexpr int64_t kChunk = 256;
  int32_t* slot = out.source.data();
  parallel_for(n, kGrain, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i += kChunk) find_chunk(id + i, std::min(kChunk, end - i), slot + i);
  });
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && slot[i + kAhead] >= 0) {
      __builtin_prefetch(&held_[slot[i + kAhead]], 1);
      __builtin_prefetch(&links_[slot[i + kAhead]], 1);
    }
    if (slot[i] != IdIndex::kNone) {
      if (held_[slot[i]].used < out.begin) use(slot[i], out.begin + i);
    } else if (id[i] >= 0) {
      note_miss(id[i], i, out);
    }
  }
}

/// In steps for all ids, so that each step's reads are prefetched during the one before.
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

/// Numbers the misses; a repeated one keeps its number.
void RowCache::note_miss(int64_t id, int64_t i, CacheLookup& out) {
  const auto next = static_cast<int32_t>(out.miss.size());
  numbers_.reserve_one(next, [&](int32_t r) { return id_tag(out.miss[static_cast<std::size_t>(r)]); });
  const int32_t number = numbers_.find_or_insert(
      id_tag(id), next, [&](int32_t r) { return out.miss[static_cast<std::size_t>(r)] == id; });
  out.source[static_cast<std::size_t>(i)] = CacheLookup::of_miss(static_cast<std::size_t>(number));
  if (number != next) return;
  out.miss.push_back(id);
  out.first.push_back(static_cast<int32_t>(i));
  out.admit.push_back(CacheLookup::kNothing);
}

/// All rows are read before any slot is written.
void RowCache::finish(const CacheLookup& lookup, const char* rows, char* out) {
  const std::lock_guard lock(mutex_);
  copy_asked(lookup, rows, out);
  admit(lookup, [&](std::size_t r) { return rows + r * row_bytes_; });
}

void RowCache::copy_asked(const CacheLookup& lookup, const char* rows, char* out) {
  const std::size_t bytes = row_bytes_;
  const auto row_at = [&](int64_t i) -> const char* {
    const int32_t source = lookup.source[static_cast<std::size_t>(i)];
    if (source >= 0) return row(source);
    if (source == CacheLookup::kNothing) return nullptr;
    return rows + CacheLookup::miss_of(source) * bytes;
  };
  const int64_t ahead = rows_ahead(bytes);
  parallel_for(static_cast<int64_t>(lookup.source.size()), kGrain, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      if (i + ahead < end) {
        if (const char* next = row_at(i + ahead)) prefetch_row(next, bytes);
      }
      char* to = out + static_cast<std::size_t>(i) * bytes;
      if (const char* from = row_at(i)) {
        std::memcpy(to, from, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  });
}

/// Finds each id's row in the schedule: the ids must be those of the schedule, in order of first
/// appearance.
void RowCache::match(const CacheSchedule& schedule, const int64_t* id, int64_t n, CacheLookup& out) {
  numbers_.reset(schedule.size + 1);
  out.source.assign(static_cast<std::size_t>(n), CacheLookup::kNothing);
  int32_t known = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (id[i] < 0) continue;
    const int32_t number =
        numbers_.find_or_insert(id_tag(id[i]), known, [&](int32_t r) { return schedule.id[r] == id[i]; });
    if (number == known) {
      if (known == schedule.size)
        throw ScheduleMismatch("id " + std::to_string(id[i]) + " is asked for and was not planned");
      if (schedule.id[known] != id[i]) {
        throw ScheduleMismatch("id " + std::to_string(id[i]) + " is asked for where " +
                               at_row(known, schedule.id[known]) + " was planned");
      }
      ++known;
    }
    out.source[static_cast<std::size_t>(i)] = number;
  }
  if (known < schedule.size)
    throw ScheduleMismatch(at_row(known, schedule.id[known]) + " was planned and is not asked for");
}

void RowCache::check_slots(const CacheSchedule& schedule) const {
  std::vector<int32_t> filled;
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r], into = schedule.admit[r];
    const bool fits =
        hit >= -1 && hit < capacity() && into >= -1 && into < capacity() && (hit < 0 || into < 0);
    if (!fits)
      throw ScheduleMismatch(at_row(r, schedule.id[r]) + " was planned for slots that there are not");
    if (into >= 0) filled.push_back(into);
    const int32_t slot = find(schedule.id[r]);
    if (slot == hit) continue;
    throw ScheduleMismatch(at_row(r, schedule.id[r]) + " is in slot " + std::to_string(slot) + ", not in " +
                           std::to_string(hit) + " as planned");
  }
  std::sort(filled.begin(), filled.end());
  const auto twice = std::adjacent_find(filled.begin(), filled.end());
  if (twice != filled.end())
    throw ScheduleMismatch("two rows were planned for slot " + std::to_string(*twice));
}

CacheLookup RowCache::apply(const CacheSchedule& schedule, const int64_t* id, int64_t n, int64_t table_size) {
  check_ids(id, n, table_size);
  const std::lock_guard lock(mutex_);
  CacheLookup found = begin(n);
  match(schedule, id, n, found);
  check_slots(schedule);
  std::vector<int32_t> source(static_cast<std::size_t>(schedule.size));
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r];
    source[static_cast<std::size_t>(r)] = hit >= 0 ? hit : CacheLookup::of_miss(found.miss.size());
    if (hit >= 0) {
      held_[hit].used = found.begin;
      continue;
    }
    found.first.push_back(static_cast<int32_t>(found.miss.size()));
    found.miss.push_back(schedule.id[r]);
    found.admit.push_back(schedule.admit[r]);
  }
  for (int32_t& from : found.source) {
    if (from != CacheLookup::kNothing) from = source[static_cast<std::size_t>(from)];
  }
  const auto misses = static_cast<int64_t>(found.miss.size());
  counts_.hits += schedule.size - misses;
  counts_.misses += misses;
  counts_.bypassed += std::count(found.admit.begin(), found.admit.end(), CacheLookup::kNothing);
  return found;
}

void RowCache::truncate(int64_t size) {
  const std::lock_guard lock(mutex_);
  for (int32_t s = 0; s < capacity(); ++s) {
    if (held_[s].id == kFree || held_[s].id < size) continue;
    index_.erase(id_tag(held_[s].id), s);
    held_[s] = {kFree, 0};
    came_[s] = 0;
  }
  sort_lists();
}

void RowCache::snapshot(int64_t* id, int64_t* key) const {
  const std::lock_guard lock(mutex_);
  for (int32_t s = 0; s < capacity(); ++s) {
    const int64_t uses = counts_uses_ ? uses_[s] : 0;
    id[s] = held_[s].id;
    key[s] = uses << kUsesShift | this->key(s);
  }
}

/// A slot with another row than in the snapshot counts as free until its row is read.
CacheLookup RowCache::restore(const int64_t* id, const int64_t* key, int64_t table_size) {
  const std::lock_guard lock(mutex_);
  CacheLookup missing;
  missing.restores = true;
  index_.clear();
  for (int32_t s = 0; s < capacity(); ++s) {
    const bool holds = id[s] != kFree && id[s] < table_size, is_there = holds && held_[s].id == id[s];
    came_[s] = holds ? key[s] & kPositions : 0;
    clock_ = std::max(clock_, came_[s] + 1);  // the snapshot may be of another cache, with a clock ahead
    held_[s] = {is_there ? id[s] : kFree, came_[s]};
    if (counts_uses_) uses_[s] = static_cast<uint8_t>(std::min<int64_t>(key[s] >> kUsesShift, kMostUses));
    if (is_there) index_.insert(id_tag(id[s]), s);
    if (!holds || is_there) continue;
    missing.miss.push_back(id[s]);
    missing.admit.push_back(s);
  }
  sort_lists();
  counts_.preloaded += static_cast<int64_t>(missing.miss.size());
  return missing;
}

CacheCounts RowCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void RowCache::reset_counts() {
  const std::lock_guard lock(mutex_);
  counts_ = {};
}

int64_t RowCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return rows_.bytes() + held_.bytes() + came_.bytes() + uses_.bytes() + links_.bytes() + index_.bytes();
}

}  // namespace tgflow
