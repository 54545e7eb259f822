#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "row_cache_begun.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tgflow {
namespace {

constexpr int kCountBits = 48;          // of a key, below the count of uses
constexpr int64_t kMostUses = 255;      // as LFU_MOST of tgflow/cache/policy.py
constexpr int64_t kPeriodSlots = 4;     // as lfu_period there
constexpr int64_t kMaxSlots = 1 << 30;  // of which the index has twice as many
constexpr int64_t kMaxIds = INT32_MAX - 2;
constexpr std::size_t kHugePage = 2 << 20;
constexpr int32_t kBusy = -2;  // another gather is bringing this row in

/// Memory whose pages are large where the system has such: rows lie anywhere in it.
char* allocate_rows(std::size_t bytes) {
  const std::size_t align = bytes >= kHugePage ? kHugePage : 64;
  bytes = (std::max<std::size_t>(bytes, 1) + align - 1) / align * align;
  void* rows = std::aligned_alloc(align, bytes);
  if (rows == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (align == kHugePage) madvise(rows, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<char*>(rows);
}

int64_t checked(int64_t capacity) {
  if (capacity < 0 || capacity >= kMaxSlots) {
    throw std::invalid_argument("a cache has at least 0 and below 2^30 rows, got " +
                                std::to_string(capacity));
  }
  return capacity;
}

}  // namespace

void RowCache::check_ids(const int64_t* id, int64_t n, int64_t table_size) {
  if (n > kMaxIds) throw std::invalid_argument("a gather has at most 2^31 - 3 ids, got " + std::to_string(n));
  for (int64_t i = 0; i < n; ++i) {
    if (id[i] < table_size) continue;
    throw std::out_of_range("id " + std::to_string(id[i]) + " is not in a table of " +
                            std::to_string(table_size) + " rows");
  }
}

RowCache::RowCache(CachePolicy policy, int64_t capacity, int64_t row_bytes)
    : policy_(policy),
      row_bytes_(static_cast<std::size_t>(row_bytes)),
      rows_(allocate_rows(static_cast<std::size_t>(checked(capacity)) * row_bytes_), &std::free),
      slots_(static_cast<std::size_t>(capacity)),
      index_(capacity),
      order_(policy == CachePolicy::kLfu ? kMostUses + 1 : 1) {
  list_free();
}

int32_t RowCache::find(int64_t id) const {
  return index_.find(SlotIndex::tag(id),
                     [&](int32_t s) { return slots_[static_cast<std::size_t>(s)].id == id; });
}

void RowCache::look_up(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Begun begun(*this, out, [] { return true; });
  find_all(id, n, out);
  const int64_t admitted = counts_.admitted;
  if (policy_ != CachePolicy::kStatic && policy_ != CachePolicy::kGiven) {
    admit(out);
  } else {
    out.admit.assign(out.miss.size(), CacheLookup::kNothing);
  }
  const auto misses = static_cast<int64_t>(out.miss.size());
  counts_.misses += misses;
  counts_.bypassed += misses - (counts_.admitted - admitted);
  clock_ += n;
  begun.done();
}

void RowCache::preload(const int64_t* id, int64_t n, int64_t table_size, CacheLookup& out) {
  check_ids(id, n, table_size);
  Begun begun(*this, out, [] { return true; });
  const int64_t hits = counts_.hits;
  find_all(id, n, out);
  counts_.hits = hits;
  admit(out);
  out.source.clear();
  std::size_t kept = 0;
  for (std::size_t r = 0; r < out.miss.size(); ++r) {
    if (out.admit[r] == CacheLookup::kNothing) continue;
    out.miss[kept] = out.miss[r];
    out.admit[kept++] = out.admit[r];
  }
  out.miss.resize(kept);
  out.admit.resize(kept);
  out.first.clear();
  counts_.preloaded += static_cast<int64_t>(kept);
  clock_ += n;
  begun.done();
}

void RowCache::find_all(const int64_t* id, int64_t n, CacheLookup& out) {
  constexpr int64_t kBlock = 64;
  out.source.resize(static_cast<std::size_t>(n));
  misses_.clear();
  for (int64_t begin = 0; begin < n; begin += kBlock) find_block(id, begin, std::min(n, begin + kBlock), out);
}

/// Asks for all entries, then for all slots, before it needs the first: they lie anywhere.
void RowCache::find_block(const int64_t* id, int64_t begin, int64_t end, CacheLookup& out) {
  int32_t* source = out.source.data();
  for (int64_t i = begin; i < end; ++i) index_.prefetch(SlotIndex::tag(id[i]));
  for (int64_t i = begin; i < end; ++i) {
    source[i] = index_.guess(SlotIndex::tag(id[i]));
    if (source[i] != SlotIndex::kNone) __builtin_prefetch(&slot(source[i]), 1);
  }
  for (int64_t i = begin; i < end; ++i) {
    int32_t s = source[i];
    if (id[i] < 0) {
      source[i] = CacheLookup::kNothing;
      continue;
    }
    if (s != SlotIndex::kNone && slot(s).id != id[i]) source[i] = s = find(id[i]);
    if (s == SlotIndex::kNone || is_filling(slot(s), out.batch)) {
      note_miss(id[i], i, out);
    } else if (slot(s).batch != out.batch) {
      use(s, out.batch, i);
    }
  }
}

bool RowCache::is_filling(const Slot& held, int64_t batch) const {
  return at_work_.size() > 1 && held.filler != batch &&
         std::find(at_work_.begin(), at_work_.end(), held.filler) != at_work_.end();
}

/// Numbers the misses; one that comes again keeps its number.
void RowCache::note_miss(int64_t id, int64_t i, CacheLookup& out) {
  if (misses_.empty()) {
    std::size_t size = 16;
    while (size < 2 * out.source.size()) size *= 2;
    misses_.assign(size, CacheLookup::kNothing);
  }
  const std::size_t last = misses_.size() - 1;
  std::size_t j = SlotIndex::tag(id) & last;
  for (; misses_[j] >= 0; j = (j + 1) & last) {
    if (out.miss[static_cast<std::size_t>(misses_[j])] == id) break;
  }
  if (misses_[j] < 0) {
    misses_[j] = static_cast<int32_t>(out.miss.size());
    const bool busy = out.source[static_cast<std::size_t>(i)] != SlotIndex::kNone;
    out.miss.push_back(id);
    out.first.push_back(static_cast<int32_t>(i));
    out.admit.push_back(busy ? kBusy : CacheLookup::kNothing);
  }
  out.source[static_cast<std::size_t>(i)] = CacheLookup::of_miss(static_cast<std::size_t>(misses_[j]));
}

void RowCache::use(int32_t s, int64_t batch, int64_t i) {
  Slot& held = slot(s);
  held.batch = batch;
  ++counts_.hits;
  if (policy_ == CachePolicy::kLru) rank(s, 0, i);
  if (policy_ == CachePolicy::kLfu) rank(s, std::min((held.key >> kCountBits) + 1, kMostUses), i);
}

/// Gives a slot its key: after all others of its count.
void RowCache::rank(int32_t s, int64_t count, int64_t i) {
  slot(s).key = count << kCountBits | (clock_ + i + 1);
  order_.push(static_cast<std::size_t>(count), slot(s).key, s);
}

/// Chooses room for as many misses as there is, and puts them there.
void RowCache::admit(CacheLookup& out) {
  const auto wanted =
      static_cast<std::size_t>(std::count(out.admit.begin(), out.admit.end(), CacheLookup::kNothing));
  victims_.clear();
  for (; victims_.size() < wanted && !free_.empty(); free_.pop_back()) victims_.push_back(free_.back());
  const int64_t oldest = at_work_.front();
  order_.take(
      wanted, [&](int32_t s) { return slot(s).key; }, [&](int32_t s) { return slot(s).batch < oldest; },
      victims_);
  std::size_t used = 0;
  const int64_t before = admissions_;
  for (std::size_t r = 0; r < out.miss.size(); ++r) {
    const bool fits = out.admit[r] == CacheLookup::kNothing && used < victims_.size();
    out.admit[r] = fits ? victims_[used++] : CacheLookup::kNothing;
    if (fits) put(out.miss[r], out.admit[r], out.batch, out.first[r]);
  }
  const int64_t period = std::max<int64_t>(kPeriodSlots * capacity(), 1);
  if (policy_ == CachePolicy::kLfu && admissions_ / period > before / period) halve_counts();
}

void RowCache::put(int64_t id, int32_t s, int64_t batch, int64_t i) {
  Slot& held = slot(s);
  if (held.id != kFree) evict(s);
  held = {id, 0, batch, batch};
  index_.insert(SlotIndex::tag(id), s);
  rank(s, policy_ == CachePolicy::kLfu ? 1 : 0, i);
  ++counts_.admitted;
  ++admissions_;
}

void RowCache::evict(int32_t s) {
  index_.erase(SlotIndex::tag(slot(s).id), s);
  ++counts_.evicted;
}

void RowCache::halve_counts() {
  for (Slot& held : slots_) {
    const int64_t when = held.key & ((int64_t{1} << kCountBits) - 1);
    held.key = held.key >> (kCountBits + 1) << kCountBits | when;
  }
  order_anew();
}

void RowCache::order_anew() {
  std::vector<int32_t> held;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].id != kFree) held.push_back(static_cast<int32_t>(s));
  }
  std::sort(held.begin(), held.end(), [&](int32_t a, int32_t b) { return slot(a).key < slot(b).key; });
  order_.clear();
  for (const int32_t s : held)
    order_.push(static_cast<std::size_t>(slot(s).key >> kCountBits), slot(s).key, s);
}

void RowCache::list_free() {
  free_.clear();
  for (std::size_t s = slots_.size(); s-- > 0;) {
    if (slots_[s].id == kFree) free_.push_back(static_cast<int32_t>(s));
  }
}

void RowCache::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  index_.clear();
  order_.clear();
  list_free();
}

void RowCache::finish(const CacheLookup& lookup, bool done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  at_work_.erase(std::find(at_work_.begin(), at_work_.end(), lookup.batch));
  changed_.notify_all();
  if (done) return;
  for (const int32_t s : lookup.admit) {
    if (s == CacheLookup::kNothing || slot(s).filler != lookup.batch || slot(s).id == kFree) continue;
    index_.erase(SlotIndex::tag(slot(s).id), s);
    slot(s) = {};
  }
  list_free();
}

void RowCache::begin_change() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return !changing_; });
  changing_ = true;
  changed_.wait(lock, [&] { return at_work_.empty(); });
}

void RowCache::end_change() {
  const std::lock_guard<std::mutex> lock(mutex_);
  changing_ = false;
  changed_.notify_all();
}

void RowCache::truncate(int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].id < size) continue;
    index_.erase(SlotIndex::tag(slots_[s].id), static_cast<int32_t>(s));
    slots_[s] = {};
  }
  list_free();
}

void RowCache::restore(const CacheState& state, int64_t table_size, CacheLookup& out) {
  Begun begun(*this, out, [&] { return at_work_.empty(); });
  index_.clear();
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const int64_t id = state.id[s] < table_size ? state.id[s] : kFree;
    const bool stays = slots_[s].id == id;
    slots_[s] = {id, id == kFree ? 0 : state.key[s], 0, 0};
    if (id == kFree) continue;
    index_.insert(SlotIndex::tag(id), static_cast<int32_t>(s));
    if (stays) continue;
    slots_[s].filler = slots_[s].batch = out.batch;
    out.miss.push_back(id);
    out.admit.push_back(static_cast<int32_t>(s));
  }
  order_anew();
  list_free();
  counts_.preloaded += static_cast<int64_t>(out.miss.size());
  begun.done();
}

void RowCache::snapshot(const CacheState& out) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    out.id[s] = slots_[s].id;
    out.key[s] = slots_[s].key;
  }
}

CacheCounts RowCache::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void RowCache::reset_counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_ = {};
}

int64_t RowCache::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto slots = static_cast<int64_t>(slots_.size());
  return slots * static_cast<int64_t>(row_bytes_ + sizeof(Slot) + sizeof(int32_t)) + index_.bytes() +
         16 * order_.num_entries();
}

}  // namespace tgflow
