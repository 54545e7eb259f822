#include "tgflow/event_counts.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "tgflow/pair_index.hpp"

namespace tgflow {
namespace {

constexpr int64_t kSlice = 256;  // events that are read while others wait
constexpr int64_t kAhead = 4;    // events whose lists are on the way while one is added
constexpr uint64_t kOneKey = 0;  // of lists that are one

}  // namespace

EventCounts::List EventCounts::list_of(CountOf of) {
  switch (of) {
    case CountOf::kPair:
    case CountOf::kReverse:
      return kPairs;
    case CountOf::kSrc:
    case CountOf::kDstAsSrc:
      return kSources;
    case CountOf::kDst:
    case CountOf::kSrcAsDst:
      return kDestinations;
    case CountOf::kTransition:
      return kTransitions;
    case CountOf::kTransitionRow:
      return kTransitionRows;
    case CountOf::kWindow:
      return kWindows;
    case CountOf::kWindowRow:
      return kWindowRows;
    case CountOf::kContinuation:
      return kContinuations;
    case CountOf::kContinuationAll:
      return kAllContinuations;
    case CountOf::kAll:
      break;
  }
  return kEvents;
}

bool EventCounts::asks(CountOf of) const {
  return std::any_of(counts_.begin(), counts_.end(), [&](const Count& count) { return count.of == of; });
}

EventCounts::EventCounts(const EventLog& log, std::vector<Count> counts)
    : log_(log), counts_(std::move(counts)) {
  std::array<std::vector<Decay>, kNumLists> decays;
  for (const Count& count : counts_) {
    const List list = list_of(count.of);
    std::vector<Decay>& known = decays[list];
    const auto place = std::find(known.begin(), known.end(), count.decay);
    decay_.push_back(static_cast<size_t>(place - known.begin()));
    if (count.decays() && place == known.end()) known.push_back(count.decay);
    sums_.push_back(count.decays() ? num_decaying_ : -1);
    num_decaying_ += count.decays();
    const auto same = std::find_if(alike_.begin(), alike_.end(), [&](const Numbers& numbers) {
      return counts_[numbers.front()].has_keys_of(count);
    });
    if (same == alike_.end()) {
      alike_.push_back({sums_.size() - 1});
    } else {
      same->push_back(sums_.size() - 1);
    }
    const bool follows = list == kTransitions || list == kTransitionRows;
    const bool windows = list == kWindows || list == kWindowRows;
    if (follows || windows) depth_ = std::max(depth_, count.depth);
    if (windows) window_depth_ = std::max(window_depth_, count.depth);
  }
  const bool continues = asks(CountOf::kContinuation) || asks(CountOf::kContinuationAll);
  if (continues) depth_ = std::max(depth_, 1);
  for (size_t list = 0; list < kNumLists; ++list) {
    const bool asked = std::any_of(counts_.begin(), counts_.end(),
                                   [&](const Count& count) { return list_of(count.of) == list; });
    const bool needed = (list == kSources && depth_ > 0) || (list == kTransitions && continues);
    const bool implied = list == kEvents && decays[list].empty();  // by positions
    if ((asked && !implied) || needed)
      lists_[list] = std::make_unique<EventLists>(log_, decays[list], arena_);
  }
}

void EventCounts::read_upto(int64_t position) {
  if (size() >= position) return;
  const std::lock_guard<std::mutex> turn(reading_on_);
  if (position > log_.size()) {
    throw std::out_of_range("position " + std::to_string(position) + " is past the log's end, " +
                            std::to_string(log_.size()) + " events");
  }
  if (is_broken_) throw std::runtime_error("counts of past events ran out of memory before");
  while (size() < position) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    const int64_t end = std::min(size() + kSlice, position);
    is_broken_ = true;
    for (eid_t eid = size(); eid < end; ++eid) {
      if (eid + kAhead < end) prefetch_event(eid + kAhead);
      add_event(eid);
    }
    is_broken_ = false;
    size_.store(end, std::memory_order_release);
  }
}

void EventCounts::prefetch_event(eid_t eid) const {
  prefetch(kPairs, pair_key(log_.src()[eid], log_.dst()[eid]));
  prefetch(kSources, static_cast<uint64_t>(log_.src()[eid]));
  prefetch(kDestinations, static_cast<uint64_t>(log_.dst()[eid]));
}

void EventCounts::add_event(eid_t eid) {
  const auto u = static_cast<uint64_t>(log_.src()[eid]), v = static_cast<uint64_t>(log_.dst()[eid]);
  if (depth_ > 0) {
    eid_t last[kMaxDepth];
    const int num_last = lists(kSources)->last_events(u, eid, std::max(window_depth_, 1), last);
    add_following(eid, last, num_last);
  }
  add(kPairs, pair_key(log_.src()[eid], log_.dst()[eid]), eid);
  add(kSources, u, eid);
  add(kDestinations, v, eid);
  add(kEvents, kOneKey, eid);
}

/// Adds an event to the lists of the destinations that its source had last.
void EventCounts::add_following(eid_t eid, const eid_t* last, int num_last) {
  const node_t v = log_.dst()[eid];
  const auto p = [&](int k) { return log_.dst()[last[k]]; };
  if (num_last == 0) return;
  prefetch(kTransitions, pair_key(p(0), v));
  prefetch(kTransitionRows, static_cast<uint64_t>(p(0)));
  for (int k = 0; k < num_last; ++k) {
    prefetch(kWindows, pair_key(p(k), v));
    prefetch(kWindowRows, static_cast<uint64_t>(p(k)));
  }
  add(kTransitionRows, static_cast<uint64_t>(p(0)), eid);
  if (add(kTransitions, pair_key(p(0), v), eid)) {
    add(kContinuations, static_cast<uint64_t>(v), eid);
    add(kAllContinuations, kOneKey, eid);
  }
  for (int k = 0; k < std::min(num_last, window_depth_); ++k) {
    add(kWindows, pair_key(p(k), v), eid);
    add(kWindowRows, static_cast<uint64_t>(p(k)), eid);
  }
}

int64_t EventCounts::bytes() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  int64_t bytes = arena_.bytes();
  for (const auto& lists : lists_) bytes += lists == nullptr ? 0 : lists->bytes();
  return bytes;
}

}  // namespace tgflow
