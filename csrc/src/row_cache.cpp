#include <stdexcept>
#include <string>

#include "row_cache_begun.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr uint8_t kMostUses = 255;      // as LFU_MOST of tgflow/cache/policy.py
constexpr int64_t kPeriodSlots = 4;     // as lfu_period there
constexpr int64_t kMaxSlots = 1 << 30;  // of which the index has twice as many
constexpr int64_t kMaxIds = INT32_MAX - 2;
constexpr int32_t kBusy = -2;  // another gather is bringing this row in

int64_t checked(int64_t capacity) {
  if (capacity < 0 || capacity >= kMaxSlots) {
    throw std::invalid_argument("a cache has at least 0 and below 2^30 rows, got " +
                                std::to_string(capacity));
  }
  return capacity;
}

}  // namespace

RowCache::RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes)
    : policy_(policy),
      row_bytes_(static_cast<std::size_t>(row_bytes)),
      rows_(checked(capacity) * row_bytes),
      id_(capacity, kFree),
      used_(capacity, 0),
      came_(capacity, 0),
      uses_(policy == CachePolicy::kLfu ? capacity : 0, 0),
      index_(capacity),
      order_(policy == CachePolicy::kLfu ? kMostUses + 1 : 1) {
  list_free();
}

void RowCache::check_ids(const int64_t* id, int64_t n, int64_t table_size) {
  if (n > kMaxIds) throw std::invalid_argument("a gather has at most 2^31 - 3 ids, got " + std::to_string(n));
  const int64_t largest = n == 0 ? kFree : *std::max_element(id, id + n);
  if (largest < table_size) return;
  throw std::out_of_range("id " + std::to_string(largest) + " is not in a table of " +
                          std::to_string(table_size) + " rows");
}

void RowCache::look_up(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Begun begun(*this, 2 * n, out, [] { return true; });
  find_all(id, n, out);
  const int64_t admitted = counts_.admitted;
  if (policy_ != CachePolicy::kStatic && policy_ != CachePolicy::kGiven) {
    admit(out.begin + n, out);
  } else {
    out.admit.assign(out.miss.size(), CacheLookup::kNothing);
  }
  const auto misses = static_cast<int64_t>(out.miss.size());
  counts_.misses += misses;
  counts_.bypassed += misses - (counts_.admitted - admitted);
  begun.done();
}

void RowCache::preload(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Begun begun(*this, 2 * n, out, [] { return true; });
  const int64_t hits = counts_.hits;
  find_all(id, n, out);
  counts_.hits = hits;
  admit(out.begin + n, out);
  out.source.clear();
  std::size_t kept = 0;
  for (std::size_t r = 0; r < out.miss.size(); ++r) {
    if (out.admit[r] == CacheLookup::kNothing) continue;
    out.miss[kept] = out.miss[r];
    out.admit[kept++] = out.admit[r];
  }
  out.miss.resize(kept);
  out.admit.resize(kept);
  counts_.preloaded += static_cast<int64_t>(kept);
  begun.done();
}

/// All look-ups first, on all threads; then their uses and the misses, in order.
void RowCache::find_all(const int64_t* id, int64_t n, CacheLookup& out) {
  constexpr int64_t kAhead = 16, kGrain = 4096;
  out.source.resize(static_cast<std::size_t>(n));
  int32_t* source = out.source.data();
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) index_.prefetch(id[i + kAhead]);
      source[i] = index_.find(id[i]);
    }
  });
  numbers_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && source[i + kAhead] >= 0) __builtin_prefetch(&used_[source[i + kAhead]], 1);
    const int32_t s = source[i];
    if (s == SlotIndex::kNone) {
      if (id[i] >= 0) note_miss(id[i], i, false, out);
    } else if (is_filling(s, out.begin)) {
      note_miss(id[i], i, true, out);
    } else if (used_[s] < out.begin) {
      use(s, out.begin + i);
    }
  }
}

/// Whether a gather at work, other than that which began at `begin`, brings this row in.
bool RowCache::is_filling(int32_t s, int64_t begin) const {
  if (at_work_.size() == 1) return false;
  return std::any_of(at_work_.begin(), at_work_.end(), [&](AtWork other) {
    return other.begin != begin && other.begin <= came_[s] && came_[s] < other.end;
  });
}

/// Numbers the misses; one that comes again keeps its number.
void RowCache::note_miss(int64_t id, int64_t i, bool busy, CacheLookup& out) {
  if (numbers_.empty()) {
    std::size_t size = 16;
    while (size < 2 * out.source.size()) size *= 2;
    numbers_.assign(size, CacheLookup::kNothing);
  }
  const std::size_t last = numbers_.size() - 1;
  std::size_t j = mix64(static_cast<uint64_t>(id)) & last;
  while (numbers_[j] >= 0 && out.miss[static_cast<std::size_t>(numbers_[j])] != id) j = (j + 1) & last;
  if (numbers_[j] < 0) {
    numbers_[j] = static_cast<int32_t>(out.miss.size());
    out.miss.push_back(id);
    out.first.push_back(static_cast<int32_t>(i));
    out.admit.push_back(busy ? kBusy : CacheLookup::kNothing);
  }
  out.source[static_cast<std::size_t>(i)] = CacheLookup::of_miss(static_cast<std::size_t>(numbers_[j]));
}

void RowCache::use(int32_t s, int64_t position) {
  used_[s] = position;
  ++counts_.hits;
  if (policy_ == CachePolicy::kLru) order_.push(0, position, s);
  if (policy_ == CachePolicy::kLfu) {
    if (uses_[s] < kMostUses) ++uses_[s];
    order_.push(uses_[s], position, s);
  }
}

/// Chooses room for as many misses as there is, and puts them there. Positions from `come` on are theirs:
/// rows admitted rank behind rows found.
void RowCache::admit(int64_t come, CacheLookup& out) {
  const auto wanted =
      static_cast<std::size_t>(std::count(out.admit.begin(), out.admit.end(), CacheLookup::kNothing));
  victims_.clear();
  for (; victims_.size() < wanted && !free_.empty(); free_.pop_back()) victims_.push_back(free_.back());
  const int64_t oldest = at_work_.front().begin;
  order_.take(wanted, keys(), [&](int32_t s) { return used_[s] < oldest; }, victims_);
  for (const int32_t s : victims_) index_.prefetch(id_[s]);
  std::size_t taken = 0;
  const int64_t before = admissions_;
  for (std::size_t r = 0; r < out.miss.size(); ++r) {
    const bool fits = out.admit[r] == CacheLookup::kNothing && taken < victims_.size();
    out.admit[r] = fits ? victims_[taken++] : CacheLookup::kNothing;
    if (fits) put(out.miss[r], out.admit[r], come + out.first[r]);
  }
  const int64_t period = std::max<int64_t>(kPeriodSlots * capacity(), 1);
  if (policy_ == CachePolicy::kLfu && admissions_ / period > before / period) halve_uses();
}

void RowCache::put(int64_t id, int32_t s, int64_t position) {
  if (id_[s] != kFree) {
    index_.erase(id_[s]);
    ++counts_.evicted;
  }
  index_.insert(id, s);
  id_[s] = id;
  used_[s] = came_[s] = position;
  const bool counted = policy_ == CachePolicy::kLfu;
  if (counted) uses_[s] = 1;
  order_.push(counted ? 1 : 0, position, s);
  ++counts_.admitted;
  ++admissions_;
}

void RowCache::set_free(int32_t s) {
  index_.erase(id_[s]);
  id_[s] = kFree;
  used_[s] = came_[s] = 0;  // what is left of it in the order is passed over
}

void RowCache::halve_uses() {
  for (int64_t s = 0; s < capacity(); ++s) uses_[s] = static_cast<uint8_t>(uses_[s] / 2);
  order_anew();
}

void RowCache::order_anew() {
  std::vector<int32_t> held;
  for (int64_t s = 0; s < capacity(); ++s) {
    if (id_[s] != kFree) held.push_back(static_cast<int32_t>(s));
  }
  const int64_t* key = keys();
  std::sort(held.begin(), held.end(), [&](int32_t a, int32_t b) { return key[a] < key[b]; });
  order_.clear();
  for (const int32_t s : held) order_.push(policy_ == CachePolicy::kLfu ? uses_[s] : 0, key[s], s);
}

void RowCache::list_free() {
  free_.clear();
  for (int64_t s = capacity(); s-- > 0;) {
    if (id_[s] == kFree) free_.push_back(static_cast<int32_t>(s));
  }
}

void RowCache::clear() {
  id_.fill(kFree);
  used_.fill(0);
  came_.fill(0);
  index_.clear();
  order_.clear();
  list_free();
}

void RowCache::finish(const CacheLookup& lookup, bool done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto mine =
      std::find_if(at_work_.begin(), at_work_.end(), [&](AtWork w) { return w.begin == lookup.begin; });
  const AtWork ended = *mine;
  at_work_.erase(mine);
  if (lookup.alone) changing_ = false;
  changed_.notify_all();
  if (done) return;
  for (std::size_t r = 0; r < lookup.miss.size(); ++r) {
    const int32_t s = lookup.admit[r];
    if (s == CacheLookup::kNothing || id_[s] != lookup.miss[r]) continue;
    if (lookup.alone || (ended.begin <= came_[s] && came_[s] < ended.end)) set_free(s);
  }
  list_free();
}

}  // namespace tgflow
