// What changes a cache as a whole: the table's own changes, snapshots, and what is counted.
#include <algorithm>
#include <cstring>

#include "row_cache_begun.hpp"

namespace tgflow {
namespace {

constexpr int kUsesShift = 48;
constexpr int64_t kPositions = (int64_t{1} << kUsesShift) - 1;

}  // namespace

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

void RowCache::snapshot(const CacheStateOut& out) const {
  const std::lock_guard lock(mutex_);
  for (int64_t s = 0; s < capacity(); ++s) {
    const int64_t uses = traits_.counts_uses ? uses_[s] : 0;
    out.id[s] = held_[s].id;
    out.key[s] = uses << kUsesShift | key(static_cast<int32_t>(s));
  }
}

void RowCache::restore(const CacheState& state, int64_t table_size, CacheLookup& out) {
  Started started(*this, 0, out, [&] { return at_work_.empty(); });
  out.source.clear();
  index_.clear();
  for (int64_t s = 0; s < capacity(); ++s) {
    const bool held = state.id[s] != kFree && state.id[s] < table_size;
    const int64_t before = held_[s].id;
    came_[s] = held ? state.key[s] & kPositions : 0;
    clock_ = std::max(clock_, came_[s] + 1);  // the snapshot may be of another cache, with a clock ahead
    held_[s] = {held ? state.id[s] : kFree, came_[s]};
    if (traits_.counts_uses) uses_[s] = static_cast<uint8_t>(state.key[s] >> kUsesShift);
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
