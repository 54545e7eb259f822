#include "tgflow/event_counts.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "tgflow/pair_index.hpp"

namespace tgflow {

namespace {

constexpr int64_t kSlice = 256;  // events read while queries wait
constexpr int64_t kAhead = 4;    // events whose lists are prefetched
constexpr uint64_t kOneKey = 0;  // key of single lists

constexpr int64_t kGroup = 16;  // pairs whose lists are prefetched together

int64_t age_of(tick_t earlier, tick_t t) {
  const uint64_t age = static_cast<uint64_t>(t) - static_cast<uint64_t>(earlier);
  return static_cast<int64_t>(std::min<uint64_t>(age, std::numeric_limits<int64_t>::max()));
}

/// Key of a count's list.
struct Key {
  uint64_t key = 0;
  bool is_one = false;  ///< False if there is no key.

  bool operator==(const Key& other) const { return key == other.key && is_one == other.is_one; }
};

}  // namespace

/// Lists and keys of a kind of count.
struct EventCounts::Kind {
  enum KeyOf : uint8_t { kPair, kReverse, kSrc, kDst, kLastAndDst, kLast, kOne };

  List list;
  KeyOf key;
};

const EventCounts::Kind& EventCounts::kind_of(CountOf of) {
  static constexpr Kind kinds[] = {
      {kPairs, Kind::kPair},              // pair
      {kPairs, Kind::kReverse},           // reverse
      {kSources, Kind::kSrc},             // src
      {kDestinations, Kind::kDst},        // dst
      {kDestinations, Kind::kSrc},        // src_as_dst
      {kSources, Kind::kDst},             // dst_as_src
      {kTransitions, Kind::kLastAndDst},  // transition
      {kTransitionRows, Kind::kLast},     // transition_row
      {kWindows, Kind::kLastAndDst},      // window
      {kWindowRows, Kind::kLast},         // window_row
      {kContinuations, Kind::kDst},       // continuation
      {kAllContinuations, Kind::kOne},    // continuation_all
      {kEvents, Kind::kOne},              // all
  };
  return kinds[static_cast<size_t>(of)];
}

bool EventCounts::asks(CountOf of) const {
  return std::any_of(counts_.begin(), counts_.end(), [&](const Count& count) { return count.of == of; });
}

EventCounts::EventCounts(const EventLog& log, std::vector<Count> counts)
    : log_(log), counts_(std::move(counts)) {
  std::array<std::vector<Decay>, kNumLists> decays;
  for (const Count& count : counts_) {
    const List list = kind_of(count.of).list;
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
                                   [&](const Count& count) { return kind_of(count.of).list == list; });
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

/// Adds an event to the lists of its source's last destinations.
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

/// All pairs in order, and the cut-off of each.
struct EventCounts::Asked {
  struct Pair {
    node_t src;
    node_t dst;
    eid_t cut;
    tick_t t;
  };
  std::vector<Pair> pair;
  std::vector<node_t> last;  ///< By pair: the source's last destinations, kNoNode for missing ones.
  int depth = 0;             ///< Number per pair.

  /// Whether a pair has the same cut-off as the previous one.
  bool is_as_before(size_t i) const { return pair[i].cut == pair[i - 1].cut && pair[i].t == pair[i - 1].t; }

  Key key(const Count& count, size_t i) const {
    const auto src = static_cast<uint64_t>(pair[i].src), dst = static_cast<uint64_t>(pair[i].dst);
    const auto p = [&] {
      return last[i * static_cast<size_t>(depth) + static_cast<size_t>(count.depth) - 1];
    };
    switch (kind_of(count.of).key) {
      case Kind::kPair:
        return {pair_key(pair[i].src, pair[i].dst), true};
      case Kind::kReverse:
        return {pair_key(pair[i].dst, pair[i].src), true};
      case Kind::kSrc:
        return {src, true};
      case Kind::kDst:
        return {dst, true};
      case Kind::kLastAndDst:
        return {pair_key(p(), pair[i].dst), p() != kNoNode};
      case Kind::kLast:
        return {static_cast<uint64_t>(p()), p() != kNoNode};
      case Kind::kOne:
        break;
    }
    return {kOneKey, true};
  }
};

/// Output of a count for all pairs.
struct EventCounts::Answer {
  int64_t* num;
  int64_t* age;
  int64_t* decayed;  ///< Null without decay.
  size_t decay;

  void copy(int64_t from, int64_t to) const {
    num[to] = num[from];
    age[to] = age[from];
    if (decayed != nullptr) decayed[to] = decayed[from];
  }
};

/// Result for a pair: equal to the previous pair's, or a prefix of a list.
struct EventCounts::Found {
  bool is_repeated = false;
  EventLists::Prefix prefix;
};

/// The first position at or after which nothing is earlier than `t`, at most `limit`. Usually close to it.
eid_t EventCounts::cut_off(tick_t t, eid_t limit) const {
  const tick_t* clocks = log_.clocks();
  int64_t step = 1;
  while (step < limit && clocks[limit - step] >= t) step *= 2;
  const int64_t low = std::max<int64_t>(limit - step, 0);
  return std::lower_bound(clocks + low, clocks + limit, t) - clocks;
}

EventCounts::Asked EventCounts::asked(const Pairs& pairs) const {
  Asked asked;
  asked.pair.reserve(static_cast<size_t>(pairs.size * pairs.width()));
  for (int64_t b = 0; b < pairs.size; ++b) {
    const eid_t cut = cut_off(pairs.t[b], pairs.limit[b]);
    asked.pair.push_back({pairs.src[b], pairs.dst[b], cut, pairs.t[b]});
    for (int64_t j = b * pairs.m; j < (b + 1) * pairs.m; ++j) {
      const node_t src = pairs.negative_src == nullptr ? pairs.src[b] : pairs.negative_src[j];
      asked.pair.push_back({src, pairs.negative_dst[j], cut, pairs.t[b]});
    }
  }
  return asked;
}

void EventCounts::find_last_destinations(Asked& asked) const {
  const auto depth = static_cast<size_t>(depth_);
  asked.depth = depth_;
  asked.last.assign(asked.pair.size() * depth, kNoNode);
  for (size_t i = 0; i < asked.pair.size(); ++i) {
    const Asked::Pair& pair = asked.pair[i];
    node_t* last = asked.last.data() + i * depth;
    if (i > 0 && pair.src == asked.pair[i - 1].src && pair.cut == asked.pair[i - 1].cut) {
      std::copy_n(last - depth, depth, last);
      continue;
    }
    eid_t eid[kMaxDepth];
    const int num = lists(kSources)->last_events(static_cast<uint64_t>(pair.src), pair.cut, depth_, eid);
    for (int k = 0; k < num; ++k) last[k] = log_.dst()[eid[k]];
  }
}

void EventCounts::answer(const Pairs& pairs, int64_t* out) const {
  Asked asked = this->asked(pairs);
  const auto size = static_cast<int64_t>(asked.pair.size());
  int64_t* const decayed = out + 2 * size * static_cast<int64_t>(counts_.size());
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (depth_ > 0) find_last_destinations(asked);
  std::vector<Answer> answers;
  for (const Numbers& alike : alike_) {
    answers.clear();
    for (const size_t i : alike) {
      int64_t* const own = out + 2 * size * static_cast<int64_t>(i);
      answers.push_back({own, own + size, sums_[i] < 0 ? nullptr : decayed + sums_[i] * size, decay_[i]});
    }
    answer_alike(counts_[alike.front()], asked, answers);
  }
}

/// Answers the counts with the same keys as `count`, which are looked up once.
void EventCounts::answer_alike(const Count& count, const Asked& asked, const std::vector<Answer>& out) const {
  const EventLists* lists = this->lists(kind_of(count.of).list);
  const auto size = static_cast<int64_t>(asked.pair.size());
  for (int64_t begin = 0; begin < size; begin += kGroup) {
    const int64_t num = std::min(kGroup, size - begin);
    Found found[kGroup];
    find_prefixes(lists, count, asked, begin, num, found);
    for (int64_t i = 0; i < num; ++i) {
      if (found[i].prefix.num > 0) __builtin_prefetch(log_.t() + found[i].prefix.last);
    }
    for (int64_t i = 0; i < num; ++i) {
      const int64_t at = begin + i;
      if (found[i].is_repeated) {
        for (const Answer& each : out) each.copy(at - 1, at);
        continue;
      }
      const Asked::Pair& pair = asked.pair[static_cast<size_t>(at)];
      const EventLists::Prefix& prefix = found[i].prefix;
      const bool is_empty = prefix.num == 0;
      const int64_t age = is_empty ? -1 : age_of(log_.t()[prefix.last], pair.t);
      for (const Answer& each : out) {
        each.num[at] = prefix.num;
        each.age[at] = age;
        if (each.decayed == nullptr) continue;
        const double sum = is_empty ? 0 : lists->decayed(prefix, each.decay, pair.t, pair.cut);
        std::memcpy(each.decayed + at, &sum, sizeof sum);
      }
    }
  }
}

/// Finds the last events of the `num` pairs from `begin` on, with overlapping cache misses.
void EventCounts::last_events(const node_t* src, const node_t* dst, const eid_t* cut, int64_t size, int most,
                              eid_t* out) const {
  const EventLists *pairs = lists(kPairs), *sources = lists(kSources), *destinations = lists(kDestinations);
  if (pairs == nullptr || sources == nullptr || destinations == nullptr) {
    throw std::invalid_argument("last events are those of counts of pair, src and dst: count all three");
  }
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::fill_n(out, size * kLasts * most, kNoEvent);
  for (int64_t i = 0; i < size; ++i) {
    const std::pair<const EventLists*, uint64_t> asked[kLasts] = {
        {pairs, pair_key(src[i], dst[i])},
        {pairs, pair_key(dst[i], src[i])},
        {sources, static_cast<uint64_t>(src[i])},
        {destinations, static_cast<uint64_t>(dst[i])},
    };
    for (const auto& [from, key] : asked) {
      from->last_events(key, cut[i], most, out);
      out += most;
    }
  }
}

void EventCounts::find_prefixes(const EventLists* lists, const Count& count, const Asked& asked,
                                int64_t begin, int64_t num, Found* found) {
  Key key[kGroup];
  uint64_t hash[kGroup];
  int32_t number[kGroup];
  const auto each = [&](const auto& act) {
    for (int64_t i = 0; i < num; ++i) {
      if (number[i] >= 0) act(i);
    }
  };
  Key before = begin == 0 ? Key{} : asked.key(count, static_cast<size_t>(begin - 1));
  for (int64_t i = 0; i < num; ++i) {
    const auto at = static_cast<size_t>(begin + i);
    key[i] = asked.key(count, at);
    found[i].is_repeated = at > 0 && key[i] == before && asked.is_as_before(at);
    number[i] = key[i].is_one && !found[i].is_repeated ? 0 : -1;
    before = key[i];
  }
  if (lists == nullptr) {  // the list of all events, given by positions
    each([&](int64_t i) {
      const eid_t cut = asked.pair[static_cast<size_t>(begin + i)].cut;
      if (cut > 0) found[i].prefix = {cut, cut - 1, nullptr};
    });
    return;
  }
  each([&](int64_t i) { hash[i] = lists->hash_of(key[i].key); });
  each([&](int64_t i) { number[i] = lists->likely(hash[i]); });
  each([&](int64_t i) { number[i] = lists->confirmed(number[i], key[i].key); });
  each([&](int64_t i) { lists->prefetch_end(number[i]); });
  each([&](int64_t i) {
    found[i].prefix = lists->prefix(number[i], asked.pair[static_cast<size_t>(begin + i)].cut);
  });
}

}  // namespace tgflow
