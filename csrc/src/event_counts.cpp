#include "tgflow/event_counts.hpp"

#include <algorithm>
#include <functional>
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
  enum KeyOf : uint8_t {
    kPair,
    kReverse,
    kSrc,
    kDst,
    kLastAndDst,
    kLast,
    kOwnLastAndDst,
    kDistinctAndDst,
    kPairAndRelation,
    kSrcAndRelation,
    kDstAndRelation,
    kRelation,
    kOne,
  };

  List list;
  KeyOf key;

  bool is_of_last() const { return key == kLastAndDst || key == kLast || key == kOwnLastAndDst; }
  /// Whether it counts events of the queried source.
  bool is_of_source() const {
    return (key == kSrc && list != kDestinations) || key == kOwnLastAndDst ||
           (key == kPair && list == kPairs);
  }
};

const EventCounts::Kind& EventCounts::kind_of(CountOf of) {
  static constexpr Kind kinds[] = {
      {kPairs, Kind::kPair},                          // pair
      {kPairs, Kind::kReverse},                       // reverse
      {kSources, Kind::kSrc},                         // src
      {kDestinations, Kind::kDst},                    // dst
      {kDestinations, Kind::kSrc},                    // src_as_dst
      {kSources, Kind::kDst},                         // dst_as_src
      {kTransitions, Kind::kLastAndDst},              // transition
      {kTransitionRows, Kind::kLast},                 // transition_row
      {kWindows, Kind::kLastAndDst},                  // window
      {kWindowRows, Kind::kLast},                     // window_row
      {kContinuations, Kind::kDst},                   // continuation
      {kAllContinuations, Kind::kOne},                // continuation_all
      {kNewAtSources, Kind::kSrc},                    // src_new
      {kNewAtDestinations, Kind::kDst},               // dst_new
      {kFirstAtDestinations, Kind::kDst},             // dst_first
      {kSwitchesFrom, Kind::kSrc},                    // src_switch
      {kSwitchesTo, Kind::kDst},                      // dst_switch
      {kOwnTransitions, Kind::kOwnLastAndDst},        // own_transition
      {kCovisits, Kind::kDistinctAndDst},             // covisit
      {kRelatedPairs, Kind::kPairAndRelation},        // pair_relation
      {kRelatedSources, Kind::kSrcAndRelation},       // src_relation
      {kRelatedDestinations, Kind::kDstAndRelation},  // dst_relation
      {kRelated, Kind::kRelation},                    // relation
      {kEvents, Kind::kOne},                          // all
  };
  return kinds[static_cast<size_t>(of)];
}

EventCounts::EventCounts(const EventLog& log, std::vector<Count> counts, Formula formula, bool finds_latest,
                         int64_t max_keys)
    : log_(log), counts_(std::move(counts)), formula_(std::move(formula)) {
  std::array<std::vector<Decay>, kNumLists> decays;
  std::array<bool, kNumLists> is_needed{};
  std::vector<size_t> decay;
  for (const Count& count : counts_) {
    const Kind& kind = kind_of(count.of);
    std::vector<Decay>& known = decays[kind.list];
    const auto place = std::find(known.begin(), known.end(), count.decay);
    decay.push_back(static_cast<size_t>(place - known.begin()));
    if (count.decays() && place == known.end()) known.push_back(count.decay);
    is_needed[kind.list] = true;
    if (kind.is_of_last()) depth_ = std::max(depth_, count.depth);
    if (kind.list == kWindows || kind.list == kWindowRows)
      window_depth_ = std::max(window_depth_, count.depth);
    if (count.of == CountOf::kCovisit) distinct_depth_ = std::max(distinct_depth_, count.depth);
    if (count.decays() && count.decay.clock == Clock::kSource) {
      if (!kind.is_of_source()) {
        throw std::invalid_argument("a decay by the source's events is of a count of other events too");
      }
      is_ordered_ = true;
    }
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
    if (step.op == Op::kSince) {
      if (!kind_of(count.of).is_of_source()) {
        throw std::invalid_argument("a step is of the source's events since those of a count of others");
      }
      is_ordered_ = true;
    }
    if (step.op == Op::kRank) {
      if (count.of == CountOf::kPair)
        distinct_depth_ = kMaxRank;
      else if (count.of == CountOf::kDst)
        ranks_all_ = true;
      else
        throw std::invalid_argument("a step is of the rank of a count that is not of pair or dst");
    }
    auto same = std::find_if(lookups_.begin(), lookups_.end(),
                             [&](const Lookup& lookup) { return lookup.count.has_keys_of(count); });
    if (same == lookups_.end()) same = lookups_.insert(same, {count, {}});
    same->loads.push_back({step.op, decay[number], i});
  }
  const bool continues = is_needed[kContinuations] || is_needed[kAllContinuations];
  if (continues) depth_ = std::max(depth_, 1);
  const bool is_new = is_needed[kNewAtSources] || is_needed[kNewAtDestinations];
  const bool orders = finds_latest || distinct_depth_ > 0 || ranks_all_;
  is_ordered_ = is_ordered_ || orders;
  is_needed[kTransitions] |= continues;
  is_needed[kPairs] |= orders || is_new || is_needed[kOwnTransitions] || is_needed[kRelatedPairs];
  is_needed[kDestinations] |= orders;
  is_needed[kSources] |= is_ordered_ || depth_ > 0 || is_needed[kFirstAtDestinations] ||
                         is_needed[kSwitchesFrom] || is_needed[kSwitchesTo];
  is_needed[kEvents] &= !decays[kEvents].empty();  // otherwise given by positions
  for (size_t list = 0; list < kNumLists; ++list) {
    if (!is_needed[list]) continue;
    const bool is_derived = list != kPairs && list != kSources && list != kDestinations;
    lists_[list] = std::make_unique<EventLists>(log_, order_, decays[list], arena_,
                                                is_derived ? max_keys : std::numeric_limits<int64_t>::max());
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
  const node_t u = log_.src()[eid], v = log_.dst()[eid];
  if (is_ordered_) {
    order_.add(eid);
    order_[eid].rank = lists(kSources)->num_before(static_cast<uint64_t>(u), eid);
  }
  if (depth_ > 0) {
    eid_t last[kMaxDepth];
    const int num_last =
        lists(kSources)->last_events(static_cast<uint64_t>(u), eid, std::max(window_depth_, 1), last);
    add_following(eid, last, num_last);
  }
  const EventLists::Earlier of_source = add(kSources, static_cast<uint64_t>(u), eid);
  const EventLists::Earlier of_pair = add(kPairs, pair_key(u, v), eid);
  const EventLists::Earlier of_dst = add(kDestinations, static_cast<uint64_t>(v), eid);
  if (is_ordered_ && of_pair.last != kNoEvent) order_[of_pair.last].next_of_pair = eid;
  if (is_ordered_ && of_dst.last != kNoEvent) order_[of_dst.last].next_of_dst = eid;
  add_news(eid, of_pair, of_source);
  add_related(eid);
  add(kEvents, kOneKey, eid);
}

/// Adds an event to the lists of its relation.
void EventCounts::add_related(eid_t eid) {
  const node_t u = log_.src()[eid], v = log_.dst()[eid];
  const int64_t relation = log_.has_relation() ? log_.relation()[eid] : 0;
  if (lists(kRelatedPairs) != nullptr) {
    add(kRelatedPairs, pair_key(lists(kPairs)->find(pair_key(u, v)), relation), eid);
  }
  add(kRelatedSources, pair_key(u, relation), eid);
  add(kRelatedDestinations, pair_key(v, relation), eid);
  add(kRelated, static_cast<uint64_t>(relation), eid);
}

/// Adds an event to the lists of its source's last destinations.
void EventCounts::add_following(eid_t eid, const eid_t* last, int num_last) {
  const node_t u = log_.src()[eid], v = log_.dst()[eid];
  const auto p = [&](int k) { return log_.dst()[last[k]]; };
  if (num_last == 0) return;
  prefetch(kTransitions, pair_key(p(0), v));
  prefetch(kTransitionRows, static_cast<uint64_t>(p(0)));
  for (int k = 0; k < num_last; ++k) {
    prefetch(kWindows, pair_key(p(k), v));
    prefetch(kWindowRows, static_cast<uint64_t>(p(k)));
  }
  add(kTransitionRows, static_cast<uint64_t>(p(0)), eid);
  if (add(kTransitions, pair_key(p(0), v), eid).num == 0) {
    add(kContinuations, static_cast<uint64_t>(v), eid);
    add(kAllContinuations, kOneKey, eid);
  }
  if (lists(kOwnTransitions) != nullptr) {
    add(kOwnTransitions, pair_key(lists(kPairs)->find(pair_key(u, p(0))), v), eid);
  }
  for (int k = 0; k < std::min(num_last, window_depth_); ++k) {
    add(kWindows, pair_key(p(k), v), eid);
    add(kWindowRows, static_cast<uint64_t>(p(k)), eid);
  }
}

/// Adds an event to the lists of those that are the first of their kind.
void EventCounts::add_news(eid_t eid, const EventLists::Earlier& of_pair,
                           const EventLists::Earlier& of_source) {
  const node_t u = log_.src()[eid], v = log_.dst()[eid];
  if (of_source.num == 0) add(kFirstAtDestinations, static_cast<uint64_t>(v), eid);
  if (of_source.num > 0 && log_.dst()[of_source.last] != v) {
    add(kSwitchesFrom, static_cast<uint64_t>(u), eid);
    add(kSwitchesTo, static_cast<uint64_t>(v), eid);
  }
  if (of_pair.num != 0) return;
  add(kNewAtSources, static_cast<uint64_t>(u), eid);
  add(kNewAtDestinations, static_cast<uint64_t>(v), eid);
  if (lists(kCovisits) == nullptr) return;
  eid_t last[kMaxRank];
  const int num = last_of_source(u, eid, distinct_depth_, last);
  for (int k = 0; k < num; ++k) {
    const node_t p = log_.dst()[last[k]];
    add(kCovisits, pair_key(std::min(p, v), std::max(p, v)), eid);
  }
}

/// Writes the last events before `cut` of up to `most` distinct destinations of a source, the last one first;
/// returns how many.
int EventCounts::last_of_source(node_t src, eid_t cut, int most, eid_t* out) const {
  return lists(kSources)->last_events_if(static_cast<uint64_t>(src), cut, kReach * most, most, out,
                                         [&](eid_t eid) { return order_[eid].next_of_pair >= cut; });
}

/// The same of all events.
int EventCounts::last_of_all(eid_t cut, int most, eid_t* out) const {
  int num = 0;
  for (eid_t eid = cut - 1; eid >= std::max<eid_t>(cut - kReach * most, 0) && num < most; --eid) {
    if (order_[eid].next_of_dst >= cut) out[num++] = eid;
  }
  return num;
}

int64_t EventCounts::bytes() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  int64_t bytes = arena_.bytes() + order_.bytes();
  for (const auto& lists : lists_) bytes += lists == nullptr ? 0 : lists->bytes();
  return bytes;
}

/// What the pairs of a source have in common at a cut-off.
struct EventCounts::Source {
  int64_t num;                   ///< Its events.
  int32_t pair_of_last;          ///< The number of the list of it and its last destination, or -1.
  std::vector<node_t> last;      ///< Last destinations, kNoNode for missing ones.
  std::vector<eid_t> events;     ///< Last events of its last distinct destinations,
  std::vector<node_t> distinct;  ///< and these.
  std::vector<eid_t> of_all;     ///< Last events of the last distinct destinations of all.
};

/// Some pairs in order, and the cut-off of each.
struct EventCounts::Asked {
  struct Pair {
    node_t src;
    node_t dst;
    eid_t cut;
    tick_t t;
    const Source* source;
    int64_t relation;
    int32_t number;  ///< Of the list of the pair, or -1; of counts of pairs and relations.
  };
  int64_t num = 0;
  std::array<Pair, Formula::kBlock> pair;
  std::vector<Source> sources;

  /// Whether a pair has the same cut-off as the previous one.
  bool is_as_before(size_t i) const { return pair[i].cut == pair[i - 1].cut && pair[i].t == pair[i - 1].t; }

  Key key(const Count& count, size_t i) const {
    const auto src = static_cast<uint64_t>(pair[i].src), dst = static_cast<uint64_t>(pair[i].dst);
    const auto p = [&] { return pair[i].source->last[static_cast<size_t>(count.depth - 1)]; };
    const auto distinct = [&] {
      const std::vector<node_t>& nodes = pair[i].source->distinct;
      return static_cast<size_t>(count.depth) > nodes.size() ? kNoNode
                                                             : nodes[static_cast<size_t>(count.depth - 1)];
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
      case Kind::kOwnLastAndDst:
        return {pair_key(pair[i].source->pair_of_last, pair[i].dst), pair[i].source->pair_of_last >= 0};
      case Kind::kDistinctAndDst:
        return {pair_key(std::min(distinct(), pair[i].dst), std::max(distinct(), pair[i].dst)),
                distinct() != kNoNode};
      case Kind::kPairAndRelation:
        return {pair_key(pair[i].number, pair[i].relation), pair[i].number >= 0};
      case Kind::kSrcAndRelation:
        return {pair_key(pair[i].src, pair[i].relation), true};
      case Kind::kDstAndRelation:
        return {pair_key(pair[i].dst, pair[i].relation), true};
      case Kind::kRelation:
        return {static_cast<uint64_t>(pair[i].relation), true};
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

void EventCounts::find_sources(Asked& asked) const {
  if (asked.sources.empty()) asked.sources.resize(Formula::kBlock);
  for (int64_t i = 0; i < asked.num; ++i) {
    Asked::Pair* const pair = asked.pair.data() + i;
    if (i > 0 && pair->src == pair[-1].src && pair->cut == pair[-1].cut) {
      pair->source = pair[-1].source;
      continue;
    }
    Source& source = asked.sources[static_cast<size_t>(i)];
    pair->source = &source;
    eid_t eids[kMaxDepth];
    const auto key = static_cast<uint64_t>(pair->src);
    source.num = lists(kSources) == nullptr ? 0 : lists(kSources)->num_before(key, pair->cut);
    source.last.assign(static_cast<size_t>(depth_), kNoNode);
    const int num = depth_ == 0 ? 0 : lists(kSources)->last_events(key, pair->cut, depth_, eids);
    for (int k = 0; k < num; ++k) source.last[static_cast<size_t>(k)] = log_.dst()[eids[k]];
    source.pair_of_last = num == 0 || lists(kOwnTransitions) == nullptr
                              ? -1
                              : lists(kPairs)->find(pair_key(pair->src, source.last[0]));
    const auto found = [&](int size, std::vector<eid_t>& events) { events.assign(eids, eids + size); };
    found(distinct_depth_ == 0 ? 0 : last_of_source(pair->src, pair->cut, distinct_depth_, eids),
          source.events);
    source.distinct.clear();
    for (const eid_t eid : source.events) source.distinct.push_back(log_.dst()[eid]);
    if (ranks_all_ && i > 0 && pair->cut == pair[-1].cut) {
      source.of_all = pair[-1].source->of_all;
    } else if (ranks_all_) {
      found(last_of_all(pair->cut, kMaxRank, eids), source.of_all);
    }
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
            is_event ? pairs.dst[b] : pairs.negative_dst[j],
            cuts[static_cast<size_t>(b)],
            pairs.t[b],
            nullptr,
            pairs.relation == nullptr ? 0 : pairs.relation[b],
            -1};
      }
      if (lists(kRelatedPairs) != nullptr) {
        for (int64_t i = 0; i < asked.num; ++i) {
          Asked::Pair& pair = asked.pair[static_cast<size_t>(i)];
          pair.number = lists(kPairs)->find(pair_key(pair.src, pair.dst));
        }
      }
      if (depth_ > 0 || is_ordered_) find_sources(asked);
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
      const double none = load.op == Op::kAge || load.op == Op::kSince ? -1
                          : load.op == Op::kRank                       ? kMaxRank
                                                                       : 0;
      std::fill_n(column + begin, num, none);
      for (int64_t i = 0; i < found.num; ++i) {
        const auto& [place, events] = found.earlier[static_cast<size_t>(i)];
        const Asked::Pair& pair = asked.pair[static_cast<size_t>(place)];
        if (load.op == Op::kNum) {
          column[place] = static_cast<double>(events.num);
        } else if (load.op == Op::kAge) {
          column[place] = static_cast<double>(age_of(log_.t()[events.last], pair.t));
        } else if (load.op == Op::kSince) {
          column[place] = static_cast<double>(pair.source->num - order_[events.last].rank - 1);
        } else if (load.op == Op::kRank) {
          const Source& source = *pair.source;
          const auto& order = lookup.count.of == CountOf::kPair ? source.events : source.of_all;
          const auto at = std::lower_bound(order.begin(), order.end(), events.last, std::greater<>());
          if (at != order.end() && *at == events.last)
            column[place] = static_cast<double>(at - order.begin());
        } else {
          const int64_t source_num = pair.source == nullptr ? 0 : pair.source->num;
          column[place] = lists->decayed(events, load.decay, {pair.t, pair.cut, source_num});
        }
      }
      for (int64_t i = 0; i < found.num_repeated; ++i) {
        const int64_t place = found.repeated[static_cast<size_t>(i)];
        column[place] = column[place - 1];
      }
    }
  }
}

void EventCounts::latest_destinations(const node_t* src, const eid_t* cut, int64_t size, int num_source,
                                      int num_all, node_t* of_source, node_t* of_all) const {
  if (!is_ordered_ || lists(kPairs) == nullptr || lists(kDestinations) == nullptr) {
    throw std::invalid_argument("these counts do not find the latest destinations");
  }
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  parallel_for(size, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<eid_t> eids(static_cast<size_t>(std::max(num_source, num_all)));
    const auto write = [&](int num, int most, node_t* out) {
      std::fill(
          std::transform(eids.begin(), eids.begin() + num, out, [&](eid_t eid) { return log_.dst()[eid]; }),
          out + most, kNoNode);
    };
    for (int64_t i = begin; i < end; ++i) {
      write(last_of_source(src[i], cut[i], num_source, eids.data()), num_source, of_source + i * num_source);
      write(last_of_all(cut[i], num_all, eids.data()), num_all, of_all + i * num_all);
    }
  });
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
