#include "tgflow/row_cache.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

#include "tgflow/gather.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kPeriodSlots = 4;  // as lfu_period of tgflow/cache/contents.py
constexpr int64_t kMaxSlots = 1 << 30;
constexpr int64_t kPlacesPerSlot = 4;
constexpr uint8_t kMostUses = 255;  // as LFU_MOST of tgflow/cache/contents.py
constexpr int64_t kMaxIds = INT32_MAX - 2;
constexpr int64_t kAhead = 16;
constexpr int64_t kGrain = 4096;  // ids or rows that are worth a thread
constexpr int32_t kBusy = -2;     // another gather is bringing this row in
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

/// Where the row of a miss is.
const char* missing(const CacheLookup& lookup, const MissRows& from, std::size_t r, std::size_t bytes) {
  const auto place = from.by_id ? static_cast<std::size_t>(lookup.miss[r] - from.first) : r;
  return from.rows + place * bytes;
}

std::string at_row(int64_t r, int64_t id) {
  return "row " + std::to_string(r) + " (id " + std::to_string(id) + ")";
}

}  // namespace

/// A gather among those at work, and the lock on the index. One that fails on the way, for want of memory,
/// leaves an empty cache.
class RowCache::Started {
 public:
  /// Waits until no change is under way and `may_begin()`; takes `size` positions on the clock.
  template <typename MayBegin>
  Started(RowCache& cache, int64_t size, CacheLookup& out, const MayBegin& may_begin)
      : cache_(cache), lock_(cache.mutex_), begin_(0) {
    cache.changed_.wait(lock_, [&] { return !cache.changing_ && cache.clearing_ == 0 && may_begin(); });
    out.miss.clear();
    out.first.clear();
    out.admit.clear();
    out.puts_after = out.alone = false;
    out.begin = begin_ = cache.clock_;
    cache.at_work_.push_back({begin_, begin_ + std::max<int64_t>(size, 1)});
    cache.clock_ = cache.at_work_.back().end;
    if (cache.order_.num_entries() > 3 * cache.capacity() + 1024) cache.purge();
  }
  ~Started() {
    if (done_) return;
    leave();
    ++cache_.clearing_;  // nobody begins, who would find rows that were never written
    cache_.changed_.wait(lock_, [&] { return cache_.at_work_.empty(); });
    cache_.clear();
    --cache_.clearing_;
    cache_.changed_.notify_all();
  }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  void done() { done_ = true; }
  /// Gives up before anything has changed.
  void give_up() {
    leave();
    done_ = true;
  }

 private:
  void leave() {
    auto& at_work = cache_.at_work_;
    at_work.erase(std::find_if(at_work.begin(), at_work.end(), [&](AtWork w) { return w.begin == begin_; }));
    cache_.changed_.notify_all();
  }

  RowCache& cache_;
  std::unique_lock<std::mutex> lock_;
  int64_t begin_;
  bool done_ = false;
};

RowCache::RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes)
    : counts_uses_(policy == CachePolicy::kLfu),
      by_use_(counts_uses_ || policy == CachePolicy::kLru),
      is_given_(policy == CachePolicy::kStatic || policy == CachePolicy::kGiven),
      row_bytes_(static_cast<std::size_t>(row_bytes)),
      rows_(checked(capacity) * row_bytes),
      held_(capacity, {kFree, 0}),
      came_(capacity, 0),
      uses_(counts_uses_ ? capacity : 0, 0),
      index_(capacity, kPlacesPerSlot),
      order_(counts_uses_ ? int{kMostUses} + 1 : 1) {
  list_free();
}

void RowCache::look_up(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Started started(*this, 2 * n, out, [] { return true; });
  find_all(id, n, out);
  const int64_t admitted = counts_.admitted;
  if (is_given_) {
    out.admit.assign(out.miss.size(), CacheLookup::kNothing);
  } else {
    admit(out.begin + n, out);
  }
  const auto misses = static_cast<int64_t>(out.miss.size());
  counts_.misses += misses;
  counts_.bypassed += misses - (counts_.admitted - admitted);
  started.done();
}

void RowCache::preload(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Started started(*this, 2 * n, out, [] { return true; });
  const int64_t hits = counts_.hits;
  find_all(id, n, out);
  counts_.hits = hits;
  admit(out.begin + n, out);
  keep_admitted(out);
  counts_.preloaded += static_cast<int64_t>(out.miss.size());
  started.done();
}

void RowCache::append(int64_t first, int64_t n, const char* rows) {
  if (is_given_) return;
  CacheLookup lookup;
  come_in(first + std::max<int64_t>(n - capacity(), 0), std::min(n, capacity()), lookup);
  copy(lookup, {rows, true, first}, nullptr);
  finish(lookup, true);
}

void RowCache::come_in(int64_t first, int64_t n, CacheLookup& out) {
  Started started(*this, n, out, [] { return true; });
  for (int64_t i = 0; i < n; ++i) {
    if (find(first + i) != IdIndex::kNone) continue;  // a gather came before
    out.miss.push_back(first + i);
    out.first.push_back(static_cast<int32_t>(i));
    out.admit.push_back(CacheLookup::kNothing);
  }
  admit(out.begin, out);
  keep_admitted(out);
  counts_.written += static_cast<int64_t>(out.miss.size());
  started.done();
}

/// Leaves out what does not come in.
void RowCache::keep_admitted(CacheLookup& out) {
  out.source.clear();
  std::size_t kept = 0;
  for (std::size_t r = 0; r < out.miss.size(); ++r) {
    if (out.admit[r] == CacheLookup::kNothing) continue;
    out.miss[kept] = out.miss[r];
    out.admit[kept++] = out.admit[r];
  }
  out.miss.resize(kept);
  out.admit.resize(kept);
}

/// Chooses room for as many misses as there is, and puts them there. Positions from `come` on are theirs:
/// rows admitted rank behind rows found.
void RowCache::admit(int64_t come, CacheLookup& out) {
  const auto wanted =
      static_cast<std::size_t>(std::count(out.admit.begin(), out.admit.end(), CacheLookup::kNothing));
  victims_.clear();
  for (; victims_.size() < wanted && !free_.empty(); free_.pop_back()) {
    if (held_[free_.back()].id == kFree) victims_.push_back(free_.back());  // scripts take any slot
  }
  const int64_t oldest = at_work_.front().begin;
  order_.take(
      wanted, [&](int32_t s) -> const int64_t& { return key(s); },
      [&](int32_t s) { return held_[s].used < oldest; }, victims_);
  for (const int32_t s : victims_) index_.prefetch(id_tag(held_[s].id));
  std::size_t taken = 0;
  const int64_t before = admissions_;
  for (std::size_t r = 0; r < out.miss.size(); ++r) {
    const bool fits = out.admit[r] == CacheLookup::kNothing && taken < victims_.size();
    out.admit[r] = fits ? victims_[taken++] : CacheLookup::kNothing;
    if (fits) put(out.miss[r], out.admit[r], come + out.first[r]);
  }
  const int64_t period = std::max<int64_t>(kPeriodSlots * capacity(), 1);
  if (counts_uses_ && admissions_ / period > before / period) halve_uses();
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
  order_.push(counts_uses_ ? 1 : 0, position, s);
  ++counts_.admitted;
  ++admissions_;
}

void RowCache::set_free(int32_t s) {
  index_.erase(id_tag(held_[s].id), s);
  held_[s] = {kFree, 0};
  came_[s] = 0;  // what is left of it in the order is passed over
}

void RowCache::purge() {
  order_.purge([&](int32_t s) -> const int64_t& { return key(s); });
}

void RowCache::halve_uses() {
  for (int64_t s = 0; s < capacity(); ++s) uses_[s] = static_cast<uint8_t>(uses_[s] / 2);
  rebuild_order();
}

void RowCache::rebuild_order() {
  std::vector<int32_t> held;
  for (int64_t s = 0; s < capacity(); ++s) {
    if (held_[s].id != kFree) held.push_back(static_cast<int32_t>(s));
  }
  std::sort(held.begin(), held.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  order_.clear();
  for (const int32_t s : held) order_.push(counts_uses_ ? uses_[s] : 0, key(s), s);
}

void RowCache::list_free() {
  free_.clear();
  for (int64_t s = capacity(); s-- > 0;) {
    if (held_[s].id == kFree) free_.push_back(static_cast<int32_t>(s));
  }
}

void RowCache::clear() {
  held_.fill({kFree, 0});
  came_.fill(0);
  index_.clear();
  order_.clear();
  list_free();
}

void RowCache::finish(const CacheLookup& lookup, bool done) {
  const std::lock_guard lock(mutex_);
  const auto mine =
      std::find_if(at_work_.begin(), at_work_.end(), [&](AtWork w) { return w.begin == lookup.begin; });
  const AtWork ended = *mine;
  at_work_.erase(mine);
  if (lookup.alone) changing_ = false;
  changed_.notify_all();
  if (done) return;
  for (std::size_t r = 0; r < lookup.miss.size(); ++r) {
    const int32_t s = lookup.admit[r];
    if (s == CacheLookup::kNothing || held_[s].id != lookup.miss[r]) continue;
    if (lookup.alone || (ended.begin <= came_[s] && came_[s] < ended.end)) set_free(s);
  }
  list_free();
}

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
  if (!by_use_) return;
  if (counts_uses_ && uses_[s] < kMostUses) ++uses_[s];
  order_.push(counts_uses_ ? uses_[s] : 0, position, s);
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
      if (const char* from_row = row_at(i)) {
        std::memcpy(to, from_row, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
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

/// Gives each id its row in the schedule: the ids must be those of the schedule, in order of first
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
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r], into = schedule.admit[r];
    const bool fits =
        hit >= -1 && hit < capacity() && into >= -1 && into < capacity() && (hit < 0 || into < 0);
    if (!fits)
      throw ScheduleMismatch(at_row(r, schedule.id[r]) + " was planned for slots that there are not");
    const int32_t slot = find(schedule.id[r]);
    if (slot == hit) continue;
    throw ScheduleMismatch(at_row(r, schedule.id[r]) + " is in slot " + std::to_string(slot) + ", not in " +
                           std::to_string(hit) + " as planned");
  }
}

/// Whether gathers at work leave alone what the schedule reads and writes.
bool RowCache::may_run(const CacheSchedule& schedule) const {
  if (at_work_.empty()) return true;
  const auto valid = [&](int32_t s) { return s >= 0 && s < capacity(); };
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r], into = schedule.admit[r];
    if (valid(into) && held_[into].used >= at_work_.front().begin) return false;
    if (valid(hit) && came_[hit] >= at_work_.front().begin) return false;
  }
  return true;
}

void RowCache::apply(const CacheSchedule& schedule, const int64_t* id, int64_t n, int64_t table_size,
                     CacheLookup& out) {
  check_ids(id, n, table_size);
  Started started(*this, n, out, [&] { return may_run(schedule); });
  try {
    match(schedule, id, n, out);
    check_slots(schedule);
  } catch (...) {
    started.give_up();
    throw;
  }
  out.puts_after = true;
  std::vector<int32_t> source(static_cast<std::size_t>(schedule.size));
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r];
    source[static_cast<std::size_t>(r)] = hit >= 0 ? hit : CacheLookup::of_miss(out.miss.size());
    if (hit >= 0) {
      held_[hit].used = out.begin;
      continue;
    }
    out.miss.push_back(schedule.id[r]);
    out.admit.push_back(schedule.admit[r]);
  }
  for (int32_t& from : out.source) {
    if (from != CacheLookup::kNothing) from = source[static_cast<std::size_t>(from)];
  }
  put_all(out);
  const auto misses = static_cast<int64_t>(out.miss.size());
  const auto kept = misses - std::count(out.admit.begin(), out.admit.end(), CacheLookup::kNothing);
  counts_.hits += schedule.size - misses;
  counts_.misses += misses;
  counts_.bypassed += misses - kept;
  started.done();
}

/// Puts misses where they are to go; two of them into one slot is a mistake.
void RowCache::put_all(const CacheLookup& lookup) {
  for (std::size_t r = 0; r < lookup.miss.size(); ++r) {
    const int32_t s = lookup.admit[r];
    if (s == CacheLookup::kNothing) continue;
    if (came_[s] >= lookup.begin)
      throw ScheduleMismatch("two rows were planned for slot " + std::to_string(s));
    put(lookup.miss[r], s, lookup.begin + static_cast<int64_t>(r));
  }
}

void RowCache::begin_change() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !changing_; });
  changing_ = true;
  changed_.wait(lock, [&] { return at_work_.empty(); });
}

void RowCache::end_change() {
  const std::lock_guard lock(mutex_);
  changing_ = false;
  changed_.notify_all();
}

void RowCache::write(const int64_t* id, int64_t n, const char* rows) {
  const std::lock_guard lock(mutex_);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = find(id[i]);
    if (s != IdIndex::kNone) std::memcpy(row(s), rows + static_cast<std::size_t>(i) * row_bytes_, row_bytes_);
  }
}

void RowCache::truncate(int64_t size) {
  const std::lock_guard lock(mutex_);
  for (int64_t s = 0; s < capacity(); ++s) {
    if (held_[s].id >= size) set_free(static_cast<int32_t>(s));
  }
  list_free();
}

void RowCache::snapshot(int64_t* id, int64_t* key) const {
  const std::lock_guard lock(mutex_);
  for (int64_t s = 0; s < capacity(); ++s) {
    const int64_t uses = counts_uses_ ? uses_[s] : 0;
    id[s] = held_[s].id;
    key[s] = uses << kUsesShift | this->key(static_cast<int32_t>(s));
  }
}

void RowCache::restore(const int64_t* id, const int64_t* key, int64_t table_size, CacheLookup& out) {
  Started started(*this, 0, out, [&] { return at_work_.empty(); });
  out.source.clear();
  index_.clear();
  for (int64_t s = 0; s < capacity(); ++s) {
    const bool held = id[s] != kFree && id[s] < table_size;
    const int64_t before = held_[s].id;
    came_[s] = held ? key[s] & kPositions : 0;
    clock_ = std::max(clock_, came_[s] + 1);  // the snapshot may be of another cache, with a clock ahead
    held_[s] = {held ? id[s] : kFree, came_[s]};
    if (counts_uses_) uses_[s] = static_cast<uint8_t>(key[s] >> kUsesShift);
    if (held) index_.insert(id_tag(held_[s].id), static_cast<int32_t>(s));
    if (!held || held_[s].id == before) continue;
    out.miss.push_back(held_[s].id);
    out.admit.push_back(static_cast<int32_t>(s));
  }
  rebuild_order();
  list_free();
  counts_.preloaded += static_cast<int64_t>(out.miss.size());
  out.alone = changing_ = true;  // nobody may read the slots before they are written
  started.done();
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
  return rows_.bytes() + held_.bytes() + came_.bytes() + uses_.bytes() + index_.bytes() + order_.bytes() +
         static_cast<int64_t>(free_.size() * sizeof(int32_t));
}

}  // namespace tgflow
