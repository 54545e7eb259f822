#include "tgflow/event_counts.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "tgflow/pair_index.hpp"

namespace tgflow {

namespace {

constexpr int64_t kSlice = 256;  // events read while queries wait
constexpr int64_t kAhead = 4;    // events whose lists are prefetched, and twice as far the heads of these

/// Up to `most` distinct nodes.
class DistinctNodes {
 public:
  explicit DistinctNodes(int most) : are_few_(most <= kPlaces / 4) {
    if (are_few_) few_.fill(kNoNode);
  }

  /// Adds a node; false if it was there.
  bool add(node_t v) {
    if (!are_few_) return many_.insert(v).second;
    const auto node = static_cast<int32_t>(v);
    size_t i = static_cast<uint32_t>(node) * 0x9E3779B1U >> 24;
    for (; few_[i] != kNoNode; i = (i + 1) % kPlaces) {
      if (few_[i] == node) return false;
    }
    few_[i] = node;
    return true;
  }

 private:
  static constexpr int kPlaces = 256;

  const bool are_few_;
  std::array<int32_t, kPlaces> few_;
  std::unordered_set<node_t> many_;
};

}  // namespace

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
                         double seconds_per_tick, int64_t max_keys, Shard shard, eid_t first)
    : log_(log),
      counts_(std::move(counts)),
      formula_(std::move(formula)),
      seconds_per_tick_(seconds_per_tick),
      shard_(shard),
      first_(first),
      size_(first),
      num_of_sources_(first),
      num_of_others_(first) {
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
    if (count.of == CountOf::kCovisit) covisit_depth_ = std::max(covisit_depth_, count.depth);
    if (count.decays() && count.decay.clock == Clock::kSource) {
      if (!kind.is_of_source()) {
        throw std::invalid_argument("a decay by the source's events is of a count of other events too");
      }
    }
  }
  distinct_depth_ = covisit_depth_;
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
    if (step.op == Op::kWithin && !(step.constant > 0)) {
      throw std::invalid_argument("a step is of the events within no time");
    }
    if (step.op == Op::kSince) {
      if (!kind_of(count.of).is_of_source()) {
        throw std::invalid_argument("a step is of the source's events since those of a count of others");
      }
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
    same->loads.push_back({step.op, i, decay[number]});
    same->has_num |= step.op == Op::kNum || step.op == Op::kWithin;
    same->is_by_source |=
        step.op == Op::kSince || (step.op == Op::kDecayed && count.decay.clock == Clock::kSource);
  }
  const auto others = std::stable_partition(lookups_.begin(), lookups_.end(), [](const Lookup& lookup) {
    return kind_of(lookup.count.of).is_own();
  });
  num_own_lookups_ = others - lookups_.begin();
  for (auto lookup = lookups_.begin(); lookup != others; ++lookup) {
    num_own_loads_ += static_cast<int64_t>(lookup->loads.size());
    needs_source_ |= lookup->is_by_source;
  }
  const bool continues = is_needed[kContinuations] || is_needed[kAllContinuations];
  if (continues) depth_ = std::max(depth_, 1);
  needs_source_ |= depth_ > 0 || distinct_depth_ > 0;
  const bool needs_last =
      depth_ > 0 || is_needed[kFirstAtDestinations] || is_needed[kSwitchesFrom] || is_needed[kSwitchesTo];
  num_last_ = std::max(window_depth_, static_cast<int>(needs_last));
  if (is_needed[kCovisits]) num_covisited_ = distinct_depth_;
  is_needed[kTransitions] |= continues;
  is_needed[kPairs] |= is_needed[kNewAtSources] || is_needed[kNewAtDestinations] || is_needed[kCovisits] ||
                       is_needed[kOwnTransitions] || is_needed[kRelatedPairs];
  bool needs_ranks =
      std::any_of(lookups_.begin(), lookups_.end(), [](const Lookup& each) { return each.is_by_source; });
  for (const auto& of : decays) {
    for (const Decay& each : of) needs_ranks |= each.clock == Clock::kSource;
  }
  if (needs_ranks) ranks_ = std::make_unique<ReservedArray<uint32_t>>(EventLists::kMost, log_.disk());
  is_needed[kSources] |= finds_latest || needs_source_ || needs_ranks || num_last_ > 0;
  is_needed[kEvents] &= !decays[kEvents].empty();  // otherwise given by positions
  is_for_any_since_ = is_whole() && !needs_ranks;
  for (size_t list = 0; list < kNumLists; ++list) {
    if (!is_needed[list]) continue;
    const bool is_derived = list != kPairs && list != kSources && list != kDestinations;
    is_for_any_since_ &= !is_derived && decays[list].empty();
    lists_[list] = std::make_unique<EventLists>(
        log_, first_, ranks_ == nullptr ? nullptr : ranks_->data(), decays[list], seconds_per_tick_,
        has_pairs(static_cast<List>(list)), is_derived ? max_keys : std::numeric_limits<int64_t>::max());
  }
}

bool EventCounts::has_pairs(List list) {
  switch (list) {
    case kPairs:
    case kTransitions:
    case kWindows:
    case kOwnTransitions:
    case kCovisits:
    case kRelatedPairs:
    case kRelatedSources:
    case kRelatedDestinations:
      return true;
    default:
      return false;
  }
}

/// The part of a list's key, unless it is made of the number of a pair.
int64_t EventCounts::part_of(List list, uint64_t key) {
  if (list == kPairs) return static_cast<int64_t>((key >> 32) % kParts);
  const bool is_own = list == kSources || list == kNewAtSources || list == kSwitchesFrom;
  return static_cast<int64_t>((is_own ? key : mix64(~key)) % kParts);  // ~: tables use the hash of the key
}

void EventCounts::read_upto(int64_t position) {
  if (size() >= position) return;
  if (!is_whole()) throw std::invalid_argument("counts of a shard are read in steps, by all ranks together");
  const std::lock_guard<std::mutex> turn(reading_on_);
  std::vector<int32_t> facts(static_cast<size_t>(kSlice * num_facts()));
  std::array<uint8_t, kSlice> is_new;
  while (size() < position) {
    const int64_t end = std::min(size() + kSlice, position);
    read_sources(end, facts.data());
    read_others(end, facts.data(), is_new.data());
    const int64_t num = end - size();
    read_continuations(end, is_new.data());
    if (is_for_any_since_ && log_.first_seen() > first_) sweep(num);
  }
}

/// Drops events that are not seen any more from some lists: from all while half of those seen are read.
void EventCounts::sweep(int64_t num) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  is_broken_ = true;
  swept_ = std::min(log_.first_seen(), size());
  const double share = 2.0 * static_cast<double>(num) / static_cast<double>(size() - swept_ + 1);
  for (const auto& lists : lists_) {
    if (lists != nullptr) lists->sweep(swept_, share);
  }
  is_broken_ = false;
}

/// The first event that counts for a question about those from `since` on.
eid_t EventCounts::first_seen(eid_t since) const {
  if (!is_for_any_since_) return first_;
  if (std::max(since, first_) < swept_)
    throw std::out_of_range("events before position " + std::to_string(swept_) + " were forgotten");
  return std::max(since, first_);
}

/// Throws unless the events [size(), end) are in the lists of the step before, and not yet in those of this.
void EventCounts::check_turn(int64_t end, int64_t done, int64_t before) const {
  if (end > log_.size()) {
    throw std::out_of_range("position " + std::to_string(end) + " is past the log's end, " +
                            std::to_string(log_.size()) + " events");
  }
  if (is_broken_) throw std::runtime_error("counts of past events ran out of memory before");
  if (end < size() || done != size() || before != end) {
    throw std::invalid_argument("events up to " + std::to_string(end) + " are read out of turn, after " +
                                std::to_string(size()));
  }
}

int64_t EventCounts::num_own(int64_t end) const {
  return std::count_if(log_.src() + size(), log_.src() + std::min(end, log_.size()),
                       [&](node_t u) { return has(u % kParts); });
}

/// Calls `use(list, key)` for lists of the source of an event, or with its facts for others.
template <typename Use>
[[gnu::always_inline]] inline void EventCounts::for_keys_ahead(eid_t eid, const int32_t* facts,
                                                               const Use& use) const {
  const auto u = log_.src()[eid], v = log_.dst()[eid];
  const auto of = [&](List list, uint64_t key) {
    if (lists_[list] != nullptr) use(*lists_[list], key);
  };
  if (facts == nullptr) {
    of(kPairs, pair_key(u, v));
    of(kSources, static_cast<uint64_t>(u));
    return;
  }
  of(kDestinations, static_cast<uint64_t>(v));
  for (int k = 0; k < num_last_ && facts[k] != kNoNode; ++k) {
    if (k == 0) of(kTransitions, pair_key(facts[k], v));
    of(kWindows, pair_key(facts[k], v));
    of(kWindowRows, static_cast<uint64_t>(facts[k]));
  }
  const int32_t* const met = facts + num_last_ + 1;
  for (int k = 0; k < num_covisited_ && met[k] != kNoNode; ++k) {
    of(kCovisits, pair_key(std::min<node_t>(met[k], v), std::max<node_t>(met[k], v)));
  }
}

/// Prefetches what the events after one read, without facts of their sources' lists, else of others.
[[gnu::always_inline]] inline void EventCounts::prefetch_ahead(eid_t eid, eid_t end,
                                                               const int32_t* facts) const {
  const auto facts_of = [&](int64_t ahead) { return facts == nullptr ? facts : facts + ahead * num_facts(); };
  if (eid + 2 * kAhead < end) {
    for_keys_ahead(eid + 2 * kAhead, facts_of(2 * kAhead),
                   [](const EventLists& lists, uint64_t key)
                       __attribute__((always_inline)) { lists.prefetch(key); });
  }
  if (eid + kAhead < end) {
    for_keys_ahead(eid + kAhead, facts_of(kAhead),
                   [](const EventLists& lists, uint64_t key)
                       __attribute__((always_inline)) { lists.prefetch_slot(key); });
  }
}

void EventCounts::read_sources(int64_t end, int32_t* facts) {
  check_turn(end, num_of_sources_, end);
  if (size() < log_.first()) throw std::out_of_range("events that were not counted yet were forgotten");
  if (end - first_ > EventLists::kMost) {
    throw std::length_error("counts hold 2^31 events at most: drop earlier ones");
  }
  if (ranks_ != nullptr) ranks_->grow(end - first_);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  is_broken_ = true;
  for (eid_t eid = size(); eid < end; ++eid) {
    prefetch_ahead(eid, end, nullptr);
    if (!has(log_.src()[eid] % kParts)) continue;
    add_to_source(eid, facts);
    facts += num_facts();
  }
  num_of_sources_ = end;
  is_broken_ = false;
}

void EventCounts::read_others(int64_t end, const int32_t* facts, uint8_t* is_new) {
  check_turn(end, num_of_others_, num_of_sources_);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  is_broken_ = true;
  for (eid_t eid = size(); eid < end; ++eid, facts += num_facts()) {
    prefetch_ahead(eid, end, facts);
    *is_new++ = add_to_others(eid, facts);
  }
  num_of_others_ = end;
  is_broken_ = false;
}

void EventCounts::read_continuations(int64_t end, const uint8_t* is_new) {
  check_turn(end, size(), num_of_others_);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  is_broken_ = true;
  for (eid_t eid = size(); eid < end && continues(); ++eid) {
    if (!*is_new++) continue;
    add(kContinuations, static_cast<uint64_t>(log_.dst()[eid]), eid);
    add(kAllContinuations, kOneKey, eid);
  }
  is_broken_ = false;
  size_.store(end, std::memory_order_release);
}

/// Adds an event to the lists of its source; writes its facts.
void EventCounts::add_to_source(eid_t eid, int32_t* facts) {
  const node_t u = log_.src()[eid], v = log_.dst()[eid];
  const auto source = static_cast<uint64_t>(u);
  const int64_t part = u % kParts;
  eid_t last[kMaxDepth];
  std::fill_n(facts, num_facts(), static_cast<int32_t>(kNoNode));
  const auto write = [&](int num, int32_t* out) {
    std::transform(last, last + num, out, [&](eid_t each) { return static_cast<int32_t>(log_.dst()[each]); });
  };
  const int num_last =
      num_last_ == 0 ? 0 : lists(kSources)->last_events(source, first_, eid, num_last_, last);
  write(num_last, facts);
  const int64_t rank = add(kSources, source, part, eid);
  if (ranks_ != nullptr) (*ranks_)[eid - first_] = static_cast<uint32_t>(rank);
  const bool is_new = add(kPairs, pair_key(u, v), part, eid) == 0;
  facts[num_last_] = is_new;
  if (is_new) add(kNewAtSources, source, part, eid);
  if (is_new && num_covisited_ > 0)
    write(last_of_source(u, first_, eid, num_covisited_, last), facts + num_last_ + 1);
  if (num_last > 0 && facts[0] != v) add(kSwitchesFrom, source, part, eid);
  if (num_last > 0 && lists(kOwnTransitions) != nullptr) {
    add(kOwnTransitions, pair_key(v, lists(kPairs)->number_of(pair_key(u, facts[0]))), part, eid);
  }
  if (lists(kRelatedPairs) != nullptr) {
    const int64_t relation = log_.has_relation() ? log_.relation()[eid] : 0;
    add(kRelatedPairs, pair_key(relation, lists(kPairs)->number_of(pair_key(u, v))), part, eid);
  }
}

/// Adds an event to the lists of other parts than its source's; returns whether it is the first of its
/// transition.
bool EventCounts::add_to_others(eid_t eid, const int32_t* facts) {
  const node_t u = log_.src()[eid], v = log_.dst()[eid];
  const int64_t num_last = std::find(facts, facts + num_last_, kNoNode) - facts;
  bool is_first = false;
  if (num_last > 0) {
    add(kTransitionRows, static_cast<uint64_t>(facts[0]), eid);
    is_first = add(kTransitions, pair_key(facts[0], v), eid) == 0;
    if (facts[0] != v) add(kSwitchesTo, static_cast<uint64_t>(v), eid);
  } else if (num_last_ > 0) {
    add(kFirstAtDestinations, static_cast<uint64_t>(v), eid);
  }
  for (int k = 0; k < std::min<int64_t>(num_last, window_depth_); ++k) {
    add(kWindows, pair_key(facts[k], v), eid);
    add(kWindowRows, static_cast<uint64_t>(facts[k]), eid);
  }
  add(kDestinations, static_cast<uint64_t>(v), eid);
  if (facts[num_last_] == 1) {
    add(kNewAtDestinations, static_cast<uint64_t>(v), eid);
    const int32_t* const met = facts + num_last_ + 1;
    for (int k = 0; k < num_covisited_ && met[k] != kNoNode; ++k) {
      add(kCovisits, pair_key(std::min<node_t>(met[k], v), std::max<node_t>(met[k], v)), eid);
    }
  }
  const int64_t relation = log_.has_relation() ? log_.relation()[eid] : 0;
  add(kRelatedSources, pair_key(u, relation), eid);
  add(kRelatedDestinations, pair_key(v, relation), eid);
  add(kRelated, static_cast<uint64_t>(relation), eid);
  add(kEvents, kOneKey, eid);
  return is_first;
}

/// Writes the last events from `since` on, before `cut`, of up to `most` distinct destinations of a source,
/// the last one first; returns how many.
int EventCounts::last_of_source(node_t src, eid_t since, eid_t cut, int most, eid_t* out) const {
  DistinctNodes nodes(most);
  return lists(kSources)->last_events_if(static_cast<uint64_t>(src), since, cut, kReach * most, most, out,
                                         [&](eid_t eid) { return nodes.add(log_.dst()[eid]); });
}

/// The same of all events.
int EventCounts::last_of_all(eid_t since, eid_t cut, int most, eid_t* out) const {
  DistinctNodes nodes(most);
  int num = 0;
  for (eid_t eid = cut - 1; eid >= std::max<eid_t>(cut - kReach * most, since) && num < most; --eid) {
    if (nodes.add(log_.dst()[eid])) out[num++] = eid;
  }
  return num;
}

int64_t EventCounts::bytes() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  int64_t bytes = ranks_ == nullptr ? 0 : (size() - first_) * static_cast<int64_t>(sizeof(uint32_t));
  for (const auto& lists : lists_) bytes += lists == nullptr ? 0 : lists->bytes();
  return bytes;
}

}  // namespace tgflow
