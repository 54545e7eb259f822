#include "tgflow/event_counts.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "tgflow/pair_index.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {

namespace {

constexpr int64_t kSlice = 256;  // events read while queries wait
constexpr int64_t kAhead = 4;    // events whose lists are prefetched
constexpr uint64_t kOneKey = 0;  // key of single lists

constexpr int64_t kGroup = 16;   // pairs whose lists are prefetched together
constexpr int64_t kGrain = 128;  // blocks worth another thread: fewer are for a batch of one, beside a model

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

EventCounts::EventCounts(const EventLog& log, std::vector<Count> counts, Formula formula)
    : log_(log), counts_(std::move(counts)), formula_(std::move(formula)) {
  std::array<std::vector<Decay>, kNumLists> decays;
  std::vector<size_t> decay;
  for (const Count& count : counts_) {
    const List list = kind_of(count.of).list;
    std::vector<Decay>& known = decays[list];
    const auto place = std::find(known.begin(), known.end(), count.decay);
    decay.push_back(static_cast<size_t>(place - known.begin()));
    if (count.decays() && place == known.end()) known.push_back(count.decay);
    const bool follows = list == kTransitions || list == kTransitionRows;
    const bool windows = list == kWindows || list == kWindowRows;
    if (follows || windows) depth_ = std::max(depth_, count.depth);
    if (windows) window_depth_ = std::max(window_depth_, count.depth);
  }
  for (size_t i = 0; i < formula_.steps().size(); ++i) {
    const Step& step = formula_.steps()[i];
    if (!step.is_of_count()) continue;
    if (step.of[0] < 0 || step.of[0] >= static_cast<int64_t>(counts_.size())) {
      throw std::invalid_argument("a step is of count " + std::to_string(step.of[0]) + " of " +
                                  std::to_string(counts_.size()));
    }
    const auto number = static_cast<size_t>(step.of[0]);
    const Count& count = counts_[number];
    if (step.op == Op::kDecayed && !count.decays()) {
      throw std::invalid_argument("a step is of the decayed sum of a count without half-life");
    }
    auto same = std::find_if(lookups_.begin(), lookups_.end(),
                             [&](const Lookup& lookup) { return lookup.count.has_keys_of(count); });
    if (same == lookups_.end()) same = lookups_.insert(same, {count, {}});
    same->loads.push_back({step.op, decay[number], i});
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

/// Some pairs in order, and the cut-off of each.
struct EventCounts::Asked {
  struct Pair {
    node_t src;
    node_t dst;
    eid_t cut;
    tick_t t;
    const node_t* last;  ///< The source's last destinations, kNoNode for missing ones.
  };
  int64_t num = 0;
  std::array<Pair, Formula::kBlock> pair;
  std::vector<node_t> last;  ///< Room for those of all pairs.

  /// Whether a pair has the same cut-off as the previous one.
  bool is_as_before(size_t i) const { return pair[i].cut == pair[i - 1].cut && pair[i].t == pair[i - 1].t; }

  Key key(const Count& count, size_t i) const {
    const auto src = static_cast<uint64_t>(pair[i].src), dst = static_cast<uint64_t>(pair[i].dst);
    const auto p = [&] { return pair[i].last[count.depth - 1]; };
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

/// Pairs of a group with earlier events, in order, and those with the same ones as the previous pair.
struct EventCounts::Found {
  struct Earlier {
    int64_t pair;
    EventLists::Prefix events;
  };
  int64_t num = 0;
  std::array<Earlier, kGroup> earlier;
  int64_t num_repeated = 0;
  std::array<int64_t, kGroup> repeated;
};

/// The first position at or after which nothing is earlier than `t`, at most `limit`. Usually close to it.
eid_t EventCounts::cut_off(tick_t t, eid_t limit) const {
  const tick_t* clocks = log_.clocks();
  int64_t step = 1;
  while (step < limit && clocks[limit - step] >= t) step *= 2;
  const int64_t low = std::max<int64_t>(limit - step, 0);
  return std::lower_bound(clocks + low, clocks + limit, t) - clocks;
}

void EventCounts::find_last_destinations(Asked& asked) const {
  asked.last.assign(static_cast<size_t>(Formula::kBlock * depth_), kNoNode);
  for (int64_t i = 0; i < asked.num; ++i) {
    Asked::Pair* const pair = asked.pair.data() + i;
    if (i > 0 && pair->src == pair[-1].src && pair->cut == pair[-1].cut) {
      pair->last = pair[-1].last;
      continue;
    }
    node_t* const last = asked.last.data() + i * depth_;
    eid_t eid[kMaxDepth];
    const int num = lists(kSources)->last_events(static_cast<uint64_t>(pair->src), pair->cut, depth_, eid);
    for (int k = 0; k < num; ++k) last[k] = log_.dst()[eid[k]];
    pair->last = last;
  }
}

void EventCounts::answer(const Pairs& pairs, double* out) const {
  constexpr int64_t kBlock = Formula::kBlock;
  const int64_t size = pairs.size * pairs.width();
  std::vector<eid_t> cuts(static_cast<size_t>(pairs.size));
  for (size_t b = 0; b < cuts.size(); ++b) cuts[b] = cut_off(pairs.t[b], pairs.limit[b]);
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  parallel_for((size + kBlock - 1) / kBlock, kGrain, [&](int64_t first_block, int64_t last_block) {
    Asked asked;
    std::vector<double> columns = formula_.columns();
    for (int64_t begin = first_block * kBlock; begin < std::min(last_block * kBlock, size); begin += kBlock) {
      asked.num = std::min(kBlock, size - begin);
      for (int64_t i = 0; i < asked.num; ++i) {
        const int64_t b = (begin + i) / pairs.width(), j = begin + i - b - 1;  // j: its negative
        const bool is_event = j < b * pairs.m;
        asked.pair[static_cast<size_t>(i)] = {
            is_event || pairs.negative_src == nullptr ? pairs.src[b] : pairs.negative_src[j],
            is_event ? pairs.dst[b] : pairs.negative_dst[j], cuts[static_cast<size_t>(b)], pairs.t[b],
            nullptr};
      }
      if (depth_ > 0) find_last_destinations(asked);
      for (const Lookup& lookup : lookups_) load(lookup, asked, columns.data());
      for (size_t step = 0; step < formula_.steps().size(); ++step) {
        if (formula_.steps()[step].op != Op::kLoop) continue;
        double* const column = columns.data() + step * kBlock;
        for (int64_t i = 0; i < asked.num; ++i) {
          const Asked::Pair& pair = asked.pair[static_cast<size_t>(i)];
          column[i] = pair.src == pair.dst ? 1.0 : 0.0;
        }
      }
      formula_.evaluate(asked.num, columns.data(), out + begin * width());
    }
  });
}

/// Writes the numbers of the counts with the same keys.
void EventCounts::load(const Lookup& lookup, const Asked& asked, double* columns) const {
  const EventLists* lists = this->lists(kind_of(lookup.count.of).list);
  Found found;
  for (int64_t begin = 0; begin < asked.num; begin += kGroup) {
    const int64_t num = std::min(kGroup, asked.num - begin);
    find_earlier(lists, lookup.count, asked, begin, num, found);
    for (const Load& load : lookup.loads) {
      double* const column = columns + load.step * Formula::kBlock;
      std::fill_n(column + begin, num, load.op == Op::kAge ? -1.0 : 0.0);
      for (int64_t i = 0; i < found.num; ++i) {
        const auto& [place, events] = found.earlier[static_cast<size_t>(i)];
        const Asked::Pair& pair = asked.pair[static_cast<size_t>(place)];
        if (load.op == Op::kNum) {
          column[place] = static_cast<double>(events.num);
        } else if (load.op == Op::kAge) {
          column[place] = static_cast<double>(age_of(log_.t()[events.last], pair.t));
        } else {
          column[place] = lists->decayed(events, load.decay, pair.t, pair.cut);
        }
      }
      for (int64_t i = 0; i < found.num_repeated; ++i) {
        const int64_t place = found.repeated[static_cast<size_t>(i)];
        column[place] = column[place - 1];
      }
    }
  }
}

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

/// Finds the events before the cut-offs of the `num` pairs from `begin` on, with overlapping cache misses.
/// Pairs that have none drop out from step to step, without branches that cannot be predicted.
void EventCounts::find_earlier(const EventLists* lists, const Count& count, const Asked& asked, int64_t begin,
                               int64_t num, Found& found) const {
  struct Wanted {
    int64_t pair;
    uint64_t key;
    uint64_t hash;
    int32_t number;
  };
  std::array<Wanted, kGroup> wanted;
  size_t size = 0;
  const auto keep = [&](const auto& is_kept) {
    size_t kept = 0;
    for (size_t i = 0; i < size; ++i) {
      wanted[kept] = wanted[i];
      kept += is_kept(wanted[kept]);
    }
    size = kept;
  };
  found.num = found.num_repeated = 0;
  Key before = begin == 0 ? Key{} : asked.key(count, static_cast<size_t>(begin - 1));
  for (int64_t i = begin; i < begin + num; ++i) {
    const Key key = asked.key(count, static_cast<size_t>(i));
    const bool is_repeated = i > 0 && key == before && asked.is_as_before(static_cast<size_t>(i));
    found.repeated[static_cast<size_t>(found.num_repeated)] = i;
    found.num_repeated += is_repeated;
    wanted[size] = {i, key.key, 0, 0};
    size += key.is_one && !is_repeated;
    before = key;
  }
  const auto cut = [&](const Wanted& each) { return asked.pair[static_cast<size_t>(each.pair)].cut; };
  if (lists != nullptr) {
    keep([&](Wanted& each) {
      each.hash = lists->hash_of(each.key);
      return true;
    });
    keep([&](Wanted& each) { return (each.number = lists->likely(each.hash)) >= 0; });
    keep([&](Wanted& each) { return (each.number = lists->confirmed(each.number, each.key)) >= 0; });
    keep([&](Wanted& each) {
      lists->prefetch_end(each.number);
      return true;
    });
  }
  for (size_t i = 0; i < size; ++i) {  // all events: given by positions
    const eid_t end = cut(wanted[i]);
    const EventLists::Prefix events = lists != nullptr ? lists->prefix(wanted[i].number, end)
                                      : end > 0        ? EventLists::Prefix{end, end - 1, nullptr}
                                                       : EventLists::Prefix{};
    found.earlier[static_cast<size_t>(found.num)] = {wanted[i].pair, events};
    found.num += events.num > 0;
  }
  for (int64_t i = 0; i < found.num; ++i) {
    __builtin_prefetch(log_.t() + found.earlier[static_cast<size_t>(i)].events.last);
  }
}

}  // namespace tgflow
