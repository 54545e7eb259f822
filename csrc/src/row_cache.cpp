#include <stdexcept>
#include <string>

#include "row_cache_begun.hpp"

namespace tgflow {
namespace {

constexpr int64_t kPeriodSlots = 4;  // as lfu_period of tgflow/cache/contents.py
constexpr int64_t kMaxSlots = 1 << 30;
constexpr int64_t kPlacesPerSlot = 4;

int64_t checked(int64_t capacity) {
  if (capacity < 0 || capacity >= kMaxSlots) {
    throw std::invalid_argument("a cache has at least 0 and below 2^30 rows, got " +
                                std::to_string(capacity));
  }
  return capacity;
}

}  // namespace

RowCache::RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes)
    : traits_(traits_of(policy)),
      row_bytes_(static_cast<std::size_t>(row_bytes)),
      rows_(checked(capacity) * row_bytes),
      held_(capacity, {kFree, 0}),
      came_(capacity, 0),
      uses_(traits_.counts_uses ? capacity : 0, 0),
      index_(capacity, kPlacesPerSlot),
      order_(traits_.counts_uses ? int{kMostUses} + 1 : 1) {
  list_free();
}

void RowCache::look_up(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Started started(*this, 2 * n, out, [] { return true; });
  find_all(id, n, out);
  const int64_t admitted = counts_.admitted;
  if (traits_.is_given) {
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
  if (traits_.is_given) return;
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
  if (traits_.counts_uses && admissions_ / period > before / period) halve_uses();
}

void RowCache::put(int64_t id, int32_t s, int64_t position) {
  if (held_[s].id != kFree) {
    index_.erase(id_tag(held_[s].id), s);
    ++counts_.evicted;
  }
  index_.insert(id_tag(id), s);
  held_[s] = {id, position};
  came_[s] = position;
  if (traits_.counts_uses) uses_[s] = 1;
  order_.push(traits_.counts_uses ? 1 : 0, position, s);
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
  for (const int32_t s : held) order_.push(traits_.counts_uses ? uses_[s] : 0, key(s), s);
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

}  // namespace tgflow
