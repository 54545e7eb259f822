#include "tgflow/pair_links.hpp"

#include <algorithm>

namespace tgflow {
namespace {

constexpr int64_t kAhead = 8;  // events whose pairs are prefetched

}  // namespace

PairLinks::PairLinks(const EventLog& log, Shard shard)
    : log_(log),
      shard_(shard),
      base_(log.first()),
      size_(base_),
      forgotten_(base_),
      distance_(kMaxEvents, log.disk()),
      latest_(0, 2, log.disk()) {}

void PairLinks::read_upto(eid_t end) {
  if (size_.load(std::memory_order_acquire) >= end) return;
  const std::lock_guard<std::mutex> turn(mutex_);
  forget();
  distance_.grow(end - base_);
  const auto latest_of = [&](eid_t eid) {
    return Latest{static_cast<uint32_t>(log_.src()[eid]), static_cast<uint32_t>(log_.dst()[eid]),
                  static_cast<uint32_t>(eid)};
  };
  for (eid_t eid = std::max(size_.load(), log_.first()); eid < end; ++eid) {
    if (eid + kAhead < end) latest_.prefetch(latest_of(eid + kAhead).hash());
    if (shard_.local(log_.src()[eid]) == kNotHeld) continue;
    const Latest latest = latest_of(eid);
    const Latest before = latest_.exchange(latest.hash(), latest, [&](const Latest& each) {
      return each.src == latest.src && each.dst == latest.dst;
    });
    distance_[eid - base_] = before.is_empty() ? 0 : latest.eid - before.eid;
  }
  size_.store(std::max(end, size_.load()), std::memory_order_release);
}

/// Drops pairs whose latest event is not seen any more, once those may be a third of all.
void PairLinks::forget() {
  const eid_t size = size_, first = std::min(log_.first_seen(), size);
  if (2 * (first - forgotten_) <= size - first) return;
  const auto held = static_cast<uint32_t>(size - first);
  latest_.erase_if([&](const Latest& each) { return static_cast<uint32_t>(size) - each.eid > held; });
  distance_.drop(first - base_);
  forgotten_ = first;
}

}  // namespace tgflow
