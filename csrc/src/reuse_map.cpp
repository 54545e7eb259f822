#include "tgflow/reuse_map.hpp"

#include <algorithm>

#include "tgflow/random.hpp"

namespace tgflow {
namespace {

/// The same number for the same time in any unit.
uint64_t moment_of(tick_t t, double seconds_per_tick) {
  if (seconds_per_tick >= 1) return static_cast<uint64_t>(t) * static_cast<uint64_t>(seconds_per_tick);
  const auto per_second = static_cast<int64_t>(1 / seconds_per_tick + 0.5);
  const int64_t nanoseconds = t % per_second * (1'000'000'000 / per_second);
  return static_cast<uint64_t>(t / per_second) ^ mix64(static_cast<uint64_t>(nanoseconds));  // of 0: 0
}

bool is_drawn(const ReuseRule& rule, node_t node, tick_t t) {
  const uint64_t moment = moment_of(t, rule.seconds_per_tick);
  const uint64_t bits = random_bits(rule.key, static_cast<uint64_t>(node), moment);
  return static_cast<double>(bits >> 11) * 0x1p-53 < rule.refresh;
}

}  // namespace

ReuseMap::ReuseMap(int64_t capacity) : slots_(capacity) {}

int32_t ReuseMap::find(node_t node, tick_t t) const {
  return places_.find(tag_of(node, t), [&](int32_t i) { return slots_[i].node == node && slots_[i].t == t; });
}

int32_t ReuseMap::free_slot() {
  if (free_.empty()) return num_taken_ < slots_.size() ? num_taken_++ : -1;
  const int32_t slot = free_.top();
  free_.pop();
  return slot;
}

void ReuseMap::link(int32_t slot, int64_t batch, int32_t older) {
  Slot& added = slots_[slot];
  int32_t& next = older < 0 ? oldest_ : slots_[older].newer;
  added.batch = batch;
  added.older = older;
  added.newer = next;
  next = slot;
  (added.newer < 0 ? newest_ : slots_[added.newer].older) = slot;
}

void ReuseMap::unlink(int32_t slot) {
  const Slot& gone = slots_[slot];
  (gone.older < 0 ? oldest_ : slots_[gone.older].newer) = gone.newer;
  (gone.newer < 0 ? newest_ : slots_[gone.newer].older) = gone.older;
}

void ReuseMap::add(int32_t slot, node_t node, tick_t t, int64_t batch, int32_t older) {
  slots_[slot].node = node;
  slots_[slot].t = t;
  link(slot, batch, older);
  places_.insert(tag_of(node, t), slot);
  ++size_;
}

void ReuseMap::forget_before(int64_t batch) {
  while (oldest_ >= 0 && slots_[oldest_].batch < batch) {
    const int32_t slot = oldest_;
    places_.erase(tag_of(slots_[slot].node, slots_[slot].t), slot);
    unlink(slot);
    free_.push(slot);
    --size_;
  }
}

void ReuseMap::sort_rows(int64_t batch, const ReuseQueries& asked, const ReuseRule& rule) {
  constexpr int64_t kAhead = 8;
  for (auto* rows : {&refreshed_, &stored_, &unkept_, &reused_}) rows->clear();
  slot_of_row_.assign(static_cast<std::size_t>(asked.size), -1);
  largest_lag_ = 0;
  for (int64_t i = 0; i < asked.size; ++i) {
    if (i + kAhead < asked.size) places_.prefetch(tag_of(asked.node[i + kAhead], asked.t[i + kAhead]));
    const int32_t found = asked.may_recur[i] ? find(asked.node[i], asked.t[i]) : -1;
    slot_of_row_[i] = found;
    if (found < 0) {
      (asked.may_recur[i] ? stored_ : unkept_).push_back(i);
    } else if (is_drawn(rule, asked.node[i], asked.t[i])) {
      refreshed_.push_back(i);
    } else {
      largest_lag_ = std::max(largest_lag_, batch - slots_[found].batch);
      reused_.push_back(i);
    }
  }
}

int64_t ReuseMap::keep_rows(int64_t batch, const ReuseQueries& asked) {
  for (const int64_t row : refreshed_) {
    unlink(slot_of_row_[row]);
    link(slot_of_row_[row], batch, newest_);
  }
  auto num_kept = static_cast<int64_t>(refreshed_.size());
  for (const int64_t row : stored_) {
    const int32_t free = slot_of_row_[row] = free_slot();
    if (free < 0) break;  // nor is one left for the rest
    add(free, asked.node[row], asked.t[row], batch, newest_);
    ++num_kept;
  }
  return num_kept;
}

ReuseCounts ReuseMap::decide(int64_t batch, const ReuseQueries& asked, const ReuseRule& rule, int64_t* order,
                             int64_t* slot) {
  forget_before(batch - rule.staleness);
  sort_rows(batch, asked, rule);
  const int64_t num_stored = keep_rows(batch, asked);
  for (const auto* rows : {&refreshed_, &stored_, &unkept_, &reused_}) {
    for (const int64_t row : *rows) {
      *order++ = row;
      *slot++ = slot_of_row_[row];
    }
  }
  const auto num_reused = static_cast<int64_t>(reused_.size());
  return {static_cast<int64_t>(refreshed_.size()), num_stored, asked.size - num_reused, largest_lag_};
}

void ReuseMap::restore(const ReuseRows& rows) {
  clear();
  std::vector<bool> is_used(static_cast<std::size_t>(slots_.size()), false);
  for (int64_t i = 0; i < rows.size; ++i) {
    const auto slot = static_cast<int32_t>(rows.slot[i]);
    add(slot, rows.node[i], rows.t[i], rows.batch[i], newest_);
    is_used[slot] = true;
    num_taken_ = std::max(num_taken_, slot + 1);
  }
  for (int32_t slot = 0; slot < num_taken_; ++slot) {
    if (!is_used[slot]) free_.push(slot);
  }
}

void ReuseMap::clear() {
  free_ = {};
  places_.clear();
  num_taken_ = 0;
  size_ = 0;
  oldest_ = newest_ = -1;
}

int64_t ReuseMap::bytes() const {
  return places_.bytes() + slots_.bytes() + static_cast<int64_t>(free_.size() * sizeof(int32_t));
}

}  // namespace tgflow
