// Answers of counts, for one process or in the steps of several.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <shared_mutex>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "tgflow/double_math.hpp"
#include "tgflow/event_counts.hpp"
#include "tgflow/pair_index.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {

namespace {

constexpr int64_t kGrain = 128;  // blocks worth another thread: fewer are for a batch of one, beside a model
constexpr int64_t kRemembered = 4096;  // events whose numbers are kept
constexpr int64_t kAwaitedGrain = 8;   // where no model runs beside, but waits

/// A node sent as a number by another rank.
node_t node_of(double value) {
  return value >= 0 && value <= kMaxNode ? static_cast<node_t>(value) : kNoNode;
}

}  // namespace

/// What the pairs of a source have in common at a cut-off.
struct EventCounts::Source {
  int64_t num = 0;               ///< Its events.
  int64_t pair_of_last = -1;     ///< The number of the list of it and its last destination, or -1.
  std::vector<node_t> last;      ///< Last destinations, kNoNode for missing ones.
  std::vector<eid_t> events;     ///< Last events of its last distinct destinations,
  std::vector<node_t> distinct;  ///< and these.
};

/// Pairs with earlier events, in order, and those with the same ones as the previous pair.
struct EventCounts::Found {
  struct Earlier {
    int64_t pair;
    EventLists::Prefix events;  ///< From the first event on that is counted.
  };
  int64_t num = 0;
  std::array<Earlier, Formula::kBlock> earlier;
  int64_t num_repeated = 0;
  std::array<int64_t, Formula::kBlock> repeated;
};

/// Some pairs in order, the cut-off of each, and their keys in the list looked up.
struct EventCounts::Asked {
  struct Pair {
    node_t src = kNoNode;
    node_t dst = kNoNode;
    tick_t t = 0;
    eid_t cut = 0;
    int64_t relation = 0;
    const Source* source = nullptr;
    const std::vector<eid_t>* latest = nullptr;  ///< Last events of the last distinct destinations of all.
    int64_t number = -1;  ///< Of the list of the pair; of counts of pairs and relations.
  };
  int64_t num = 0;
  eid_t since = 0;  ///< Events from it on count.
  std::array<Pair, Formula::kBlock> pair;
  std::array<bool, Formula::kBlock>
      is_at_same{};                           ///< Whether a pair has the time and cut-off of the previous.
  std::array<uint64_t, Formula::kBlock> key;  ///< kNoKey for none.
  std::vector<Source> sources = std::vector<Source>(Formula::kBlock);
  std::vector<std::vector<eid_t>> latest = std::vector<std::vector<eid_t>>(Formula::kBlock);
  Found found;
};

/// Finds the keys of the pairs in the list of a count.
void EventCounts::find_keys(const Count& count, Asked& asked) const {
  const auto write = [&](const auto& key_of) {
    std::transform(asked.pair.begin(), asked.pair.begin() + asked.num, asked.key.begin(), key_of);
  };
  using Pair = Asked::Pair;
  const auto depth = static_cast<size_t>(count.depth);
  const auto at_depth = [depth](const std::vector<node_t>& nodes) {
    return depth > nodes.size() ? kNoNode : nodes[depth - 1];
  };
  const auto or_none = [](int64_t of, uint64_t key) { return of < 0 ? kNoKey : key; };
  switch (kind_of(count.of).key) {
    case Kind::kPair:
      return write([](const Pair& pair) { return pair_key(pair.src, pair.dst); });
    case Kind::kReverse:
      return write([](const Pair& pair) { return pair_key(pair.dst, pair.src); });
    case Kind::kSrc:
      return write([](const Pair& pair) { return static_cast<uint64_t>(pair.src); });
    case Kind::kDst:
      return write([](const Pair& pair) { return static_cast<uint64_t>(pair.dst); });
    case Kind::kLastAndDst:
      return write([&](const Pair& pair) {
        const node_t p = at_depth(pair.source->last);
        return or_none(p, pair_key(p, pair.dst));
      });
    case Kind::kLast:
      return write([&](const Pair& pair) {
        const node_t p = at_depth(pair.source->last);
        return or_none(p, static_cast<uint64_t>(p));
      });
    case Kind::kOwnLastAndDst:
      return write([&](const Pair& pair) {
        return or_none(pair.source->pair_of_last, pair_key(pair.dst, pair.source->pair_of_last));
      });
    case Kind::kDistinctAndDst:
      return write([&](const Pair& pair) {
        const node_t p = at_depth(pair.source->distinct);
        return or_none(p, pair_key(std::min(p, pair.dst), std::max(p, pair.dst)));
      });
    case Kind::kPairAndRelation:
      return write(
          [&](const Pair& pair) { return or_none(pair.number, pair_key(pair.relation, pair.number)); });
    case Kind::kSrcAndRelation:
      return write([](const Pair& pair) { return pair_key(pair.src, pair.relation); });
    case Kind::kDstAndRelation:
      return write([](const Pair& pair) { return pair_key(pair.dst, pair.relation); });
    case Kind::kRelation:
      return write([](const Pair& pair) { return static_cast<uint64_t>(pair.relation); });
    case Kind::kOne:
      return write([](const Pair&) { return kOneKey; });
  }
}

/// The first position at or after which nothing is earlier than `t`, at most `limit`. Usually close to it.
eid_t EventCounts::cut_off(tick_t t, eid_t limit) const {
  const tick_t* clocks = log_.clocks();
  int64_t step = 1;
  while (step < limit && clocks[limit - step] >= t) step *= 2;
  const int64_t low = std::max<int64_t>(limit - step, 0);
  return std::lower_bound(clocks + low, clocks + limit, t) - clocks;
}

void EventCounts::find_sources(Asked& asked) const {
  for (int64_t i = 0; i < asked.num; ++i) {
    Asked::Pair* const pair = asked.pair.data() + i;
    if (lists(kRelatedPairs) != nullptr)
      pair->number = lists(kPairs)->number_of(pair_key(pair->src, pair->dst));
    if (i > 0 && pair->src == pair[-1].src && pair->cut == pair[-1].cut) {
      pair->source = pair[-1].source;
      continue;
    }
    Source& source = asked.sources[static_cast<size_t>(i)];
    pair->source = &source;
    if (!needs_source_) continue;
    eid_t eids[kMaxDepth];
    const auto key = static_cast<uint64_t>(pair->src);
    source.num = lists(kSources)->num_before(key, pair->cut);
    source.last.assign(static_cast<size_t>(depth_), kNoNode);
    const int num = depth_ == 0 ? 0 : lists(kSources)->last_events(key, asked.since, pair->cut, depth_, eids);
    for (int k = 0; k < num; ++k) source.last[static_cast<size_t>(k)] = log_.dst()[eids[k]];
    source.pair_of_last = num == 0 || lists(kOwnTransitions) == nullptr
                              ? -1
                              : lists(kPairs)->number_of(pair_key(pair->src, source.last[0]));
    const int num_distinct =
        distinct_depth_ == 0 ? 0 : last_of_source(pair->src, asked.since, pair->cut, distinct_depth_, eids);
    source.events.assign(eids, eids + num_distinct);
    source.distinct.clear();
    for (const eid_t eid : source.events) source.distinct.push_back(log_.dst()[eid]);
  }
}

/// Finds the last destinations of all events, if they are ranked.
void EventCounts::find_latest(Asked& asked) const {
  for (int64_t i = 0; i < asked.num && ranks_all_; ++i) {
    Asked::Pair* const pair = asked.pair.data() + i;
    if (i > 0 && pair->cut == pair[-1].cut) {
      pair->latest = pair[-1].latest;
      continue;
    }
    std::vector<eid_t>& latest = asked.latest[static_cast<size_t>(i)];
    latest.resize(kMaxRank);
    latest.resize(static_cast<size_t>(last_of_all(asked.since, pair->cut, kMaxRank, latest.data())));
    pair->latest = &latest;
  }
}

/// Calls `use(begin, asked)` for each block of `size` pairs, `pair_at(i)`, of events from `since` on.
template <typename PairAt, typename Use>
void EventCounts::for_blocks(int64_t size, eid_t since, const PairAt& pair_at, const Use& use,
                             bool is_awaited) const {
  constexpr int64_t kBlock = Formula::kBlock;
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  since = first_seen(since);
  const int64_t grain = is_awaited ? kAwaitedGrain : kGrain;
  parallel_for((size + kBlock - 1) / kBlock, grain, [&](int64_t first_block, int64_t last_block) {
    Asked asked;
    asked.since = since;
    std::vector<double> columns = formula_.columns();
    for (int64_t begin = first_block * kBlock; begin < std::min(last_block * kBlock, size); begin += kBlock) {
      asked.num = std::min(kBlock, size - begin);
      for (int64_t i = 0; i < asked.num; ++i) {
        Asked::Pair* const pair = asked.pair.data() + i;
        *pair = pair_at(begin + i);
        asked.is_at_same[static_cast<size_t>(i)] =
            i > 0 && pair->cut == pair[-1].cut && pair->t == pair[-1].t;
      }
      use(begin, asked, columns.data());
    }
  });
}

template <typename T>
void EventCounts::answer(const Pairs& pairs, T* out, bool is_awaited) const {
  std::vector<eid_t> cuts(static_cast<size_t>(pairs.size));
  for (size_t b = 0; b < cuts.size(); ++b) cuts[b] = cut_off(pairs.t[b], pairs.limit[b]);
  const auto relation_of = [&](int64_t b) { return pairs.relation == nullptr ? 0 : pairs.relation[b]; };
  std::shared_ptr<const Answered> known;
  if constexpr (std::is_same_v<T, float>) {
    const std::lock_guard<std::mutex> turn(remembering_);
    known = answered_;
  }
  if (known != nullptr && known->since != pairs.since) known = nullptr;
  const auto event_at = [&](int64_t b) -> Answered::Event {
    return {pairs.src[b], pairs.dst[b], pairs.t[b], cuts[static_cast<size_t>(b)], relation_of(b)};
  };
  const auto is_known = [&](int64_t b) {
    return known != nullptr && b < static_cast<int64_t>(known->events.size()) &&
           known->events[static_cast<size_t>(b)] == event_at(b);
  };
  // slots that repeat their event, such as those without a negative, get its numbers
  struct Slot {
    int64_t event, place;
    node_t src, dst;
  };
  std::vector<Slot> slots;
  slots.reserve(static_cast<size_t>(pairs.size * pairs.width()));
  for (int64_t b = 0; b < pairs.size; ++b) {
    const int64_t place = b * pairs.width();
    if (!is_known(b)) slots.push_back({b, place, pairs.src[b], pairs.dst[b]});
    for (int64_t j = b * pairs.m; j < (b + 1) * pairs.m; ++j) {
      const node_t src = pairs.negative_src == nullptr ? pairs.src[b] : pairs.negative_src[j];
      const node_t dst = pairs.negative_dst[j];
      if (src != pairs.src[b] || dst != pairs.dst[b]) slots.push_back({b, j + b + 1, src, dst});
    }
  }
  const auto num = static_cast<int64_t>(slots.size());
  const auto pair_at = [&](int64_t i) -> Asked::Pair {
    const auto& [b, place, src, dst] = slots[static_cast<size_t>(i)];
    return {src, dst, pairs.t[b], cuts[static_cast<size_t>(b)], relation_of(b)};
  };
  for_blocks(
      num, pairs.since, pair_at,
      [&](int64_t begin, Asked& asked, double* columns) {
        find_sources(asked);
        find_latest(asked);
        for (const Lookup& lookup : lookups_) {
          find_keys(lookup.count, asked);
          load(lookup, asked, columns);
        }
        load_loops(asked, columns);
        formula_.evaluate(asked.num, columns, out + begin * width());
      },
      is_awaited);
  const auto row = [&](int64_t place) { return out + place * width(); };
  for (int64_t i = num - 1; i >= 0 && slots[static_cast<size_t>(i)].place > i; --i)
    std::copy_n(row(i), width(), row(slots[static_cast<size_t>(i)].place));
  auto next = slots.begin();
  for (int64_t b = 0; b < pairs.size; ++b) {
    const int64_t event = b * pairs.width();
    for (int64_t place = event; place < event + pairs.width(); ++place) {
      if (next != slots.end() && next->place == place) {
        ++next;
      } else if (place > event) {
        std::copy_n(row(event), width(), row(place));
      } else {
        std::copy_n(known->numbers.data() + b * width(), width(), row(event));
      }
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    auto latest = std::make_shared<Answered>();
    latest->since = pairs.since;
    for (int64_t b = 0; b < std::min(pairs.size, kRemembered); ++b) {
      latest->events.push_back(event_at(b));
      latest->numbers.insert(latest->numbers.end(), row(b * pairs.width()), row(b * pairs.width()) + width());
    }
    const std::lock_guard<std::mutex> turn(remembering_);
    answered_ = std::move(latest);
  }
}

template void EventCounts::answer(const Pairs& pairs, double* out, bool is_awaited) const;
template void EventCounts::answer(const Pairs& pairs, float* out, bool is_awaited) const;

void EventCounts::load_loops(const Asked& asked, double* columns) const {
  for (size_t step = 0; step < formula_.steps().size(); ++step) {
    if (formula_.steps()[step].op != Op::kLoop) continue;
    for (int64_t i = 0; i < asked.num; ++i) {
      const Asked::Pair& pair = asked.pair[static_cast<size_t>(i)];
      columns[static_cast<int64_t>(step) * Formula::kBlock + i] = pair.src == pair.dst ? 1.0 : 0.0;
    }
  }
}

void EventCounts::answer_sources(const Rows& rows, double* found) const {
  const auto pair_at = [&](int64_t i) -> Asked::Pair {
    return {rows.src[i], rows.dst[i], rows.t[i], cut_off(rows.t[i], rows.limit[i]), rows.relation[i]};
  };
  for_blocks(rows.size, first_, pair_at, [&](int64_t begin, Asked& asked, double* columns) {
    find_sources(asked);
    for (int64_t n = 0; n < num_own_lookups_; ++n) {
      find_keys(lookups_[static_cast<size_t>(n)].count, asked);
      load(lookups_[static_cast<size_t>(n)], asked, columns);
    }
    for (int64_t i = 0; i < asked.num; ++i) {
      const Source& source = *asked.pair[static_cast<size_t>(i)].source;
      double* out = found + (begin + i) * num_found();
      for_own_loads([&](const Load& load) { *out++ = columns[column_of(load) + i]; });
      std::fill_n(out, depth_ + covisit_depth_, static_cast<double>(kNoNode));
      std::copy(source.last.begin(), source.last.end(), out);
      const auto num = std::min(source.distinct.size(), static_cast<size_t>(covisit_depth_));
      std::copy_n(source.distinct.begin(), num, out + depth_);
    }
  });
}

void EventCounts::find_keys(const Rows& rows, const double* found, uint64_t* keys, int64_t* parts) const {
  const auto pair_at = [&](int64_t i) {
    return Asked::Pair{rows.src[i], rows.dst[i], 0, 0, rows.relation[i]};
  };
  for_blocks(rows.size, first_, pair_at, [&](int64_t begin, Asked& asked, double*) {
    for (int64_t i = 0; i < asked.num; ++i) {
      Source& source = asked.sources[static_cast<size_t>(i)];
      const double* nodes = found + (begin + i) * num_found() + num_own_loads_;
      const auto next = [&] { return node_of(*nodes++); };
      source.last.resize(static_cast<size_t>(depth_));
      source.distinct.resize(static_cast<size_t>(covisit_depth_));
      std::generate(source.last.begin(), source.last.end(), next);
      std::generate(source.distinct.begin(), source.distinct.end(), next);
      asked.pair[static_cast<size_t>(i)].source = &source;
    }
    for (int64_t k = 0; k < num_keys(); ++k) {
      const Count& count = lookups_[static_cast<size_t>(num_own_lookups_ + k)].count;
      find_keys(count, asked);
      for (int64_t i = 0; i < asked.num; ++i) {
        const uint64_t key = asked.key[static_cast<size_t>(i)];
        keys[k * rows.size + begin + i] = key;
        parts[k * rows.size + begin + i] = key == kNoKey ? -1 : part_of(kind_of(count.of).list, key);
      }
    }
  });
}

void EventCounts::answer_keys(const int64_t* num, const uint64_t* keys, const Rows& rows, double* out) const {
  int64_t start = 0;
  for (int64_t k = 0; k < num_keys(); start += num[k++]) {
    const Lookup& lookup = lookups_[static_cast<size_t>(num_own_lookups_ + k)];
    const auto pair_at = [&](int64_t i) -> Asked::Pair {
      const int64_t row = start + i;
      return {kNoNode, kNoNode, rows.t[row], cut_off(rows.t[row], rows.limit[row])};
    };
    for_blocks(num[k], first_, pair_at, [&](int64_t begin, Asked& asked, double* columns) {
      std::copy_n(keys + start + begin, asked.num, asked.key.begin());
      if (lookup.count.of == CountOf::kDst) find_latest(asked);
      load(lookup, asked, columns);
      for (int64_t i = 0; i < asked.num; ++i) {
        double* each = out + (start + begin + i) * num_loads();
        for (const Load& load : lookup.loads) *each++ = columns[column_of(load) + i];
      }
    });
  }
}

void EventCounts::evaluate(const Rows& rows, const double* found, const double* others, double* out) const {
  const auto pair_at = [&](int64_t i) { return Asked::Pair{rows.src[i], rows.dst[i]}; };
  for_blocks(rows.size, first_, pair_at, [&](int64_t begin, Asked& asked, double* columns) {
    for (int64_t i = 0; i < asked.num; ++i) {
      const double* each = found + (begin + i) * num_found();
      for_own_loads([&](const Load& load) { columns[column_of(load) + i] = *each++; });
      for (int64_t k = 0; k < num_keys(); ++k) {
        each = others + (k * rows.size + begin + i) * num_loads();
        const Lookup& lookup = lookups_[static_cast<size_t>(num_own_lookups_ + k)];
        for (const Load& load : lookup.loads) columns[column_of(load) + i] = *each++;
      }
    }
    load_loops(asked, columns);
    formula_.evaluate(asked.num, columns, out + begin * width());
  });
}

std::vector<int64_t> EventCounts::loads() const {
  std::vector<int64_t> found;
  for (size_t k = static_cast<size_t>(num_own_lookups_); k < lookups_.size(); ++k) {
    found.push_back(static_cast<int64_t>(lookups_[k].loads.size()));
  }
  return found;
}

int64_t EventCounts::num_loads() const {
  const std::vector<int64_t> of = loads();
  return of.empty() ? 0 : *std::max_element(of.begin(), of.end());
}

/// Writes the numbers of the counts with the same keys.
void EventCounts::load(const Lookup& lookup, Asked& asked, double* columns) const {
  const EventLists* lists = this->lists(kind_of(lookup.count.of).list);
  Found& found = asked.found;
  find_earlier(lists, asked);
  const auto for_found = [&](const auto& use) {
    for (int64_t i = 0; i < found.num; ++i) {
      const auto& [place, events] = found.earlier[static_cast<size_t>(i)];
      use(i, asked.pair[static_cast<size_t>(place)], events);
    }
  };
  std::array<int64_t, Formula::kBlock> source_age{};  // events of the source from the last one found on
  if (lookup.is_by_source) {
    for_found([&](int64_t i, const Asked::Pair& pair, const EventLists::Prefix& events) {
      source_age[static_cast<size_t>(i)] = pair.source->num - (*ranks_)[events.last - first_];
    });
  }
  std::array<int64_t, Formula::kBlock> num_unseen{};
  if (lookup.has_num && lists != nullptr && asked.since > first_) {
    for_found([&](int64_t i, const Asked::Pair& pair, const EventLists::Prefix& events) {
      const uint64_t key = asked.key[static_cast<size_t>(&pair - asked.pair.data())];
      if (events.num > 1) num_unseen[static_cast<size_t>(i)] = lists->num_unseen(key, asked.since);
    });
  }
  std::array<EventLists::Tail, Formula::kBlock> tails;  // what sums are of
  if (lists != nullptr && lists->has_decays()) {
    for_found([&](int64_t i, const Asked::Pair&, const EventLists::Prefix& events) {
      lists->prefetch(tails[static_cast<size_t>(i)] = lists->tail(events));
    });
  }
  double ages[Formula::kBlock * (EventLists::kMostTail + 1)], rest[std::size(ages)];
  int64_t num_ages = 0;
  const Clock* clock = nullptr;  // of these
  for (const Load& load : lookup.loads) {
    double* const column = columns + column_of(load);
    const double none = load.op == Op::kAge || load.op == Op::kSince ? -1
                        : load.op == Op::kRank                       ? kMaxRank
                                                                     : 0;
    std::fill_n(column, asked.num, none);
    const double* left = rest;
    if (load.op == Op::kDecayed) {
      const Decay& how = lists->decay(load.decay);
      if (clock == nullptr || *clock != how.clock) {
        clock = &how.clock;
        num_ages = 0;
        for_found([&](int64_t i, const Asked::Pair& pair, const EventLists::Prefix& events) {
          const EventLists::Tail& tail = tails[static_cast<size_t>(i)];
          lists->write_ages(tail, how.clock, ages + num_ages);
          ages[num_ages += tail.num] =
              how.clock == Clock::kSeconds
                  ? seconds_between(log_.clocks()[events.last], pair.t, seconds_per_tick_)
                  : static_cast<double>(how.clock == Clock::kEvents ? pair.cut - events.last
                                                                    : source_age[static_cast<size_t>(i)]);
          ++num_ages;
        });
      }
      decay_all(ages, num_ages, how.half_life, rest);
    }
    const auto number = [&](int64_t i, const Asked::Pair& pair, const EventLists::Prefix& events) -> double {
      const auto at = static_cast<size_t>(i);
      switch (load.op) {
        case Op::kNum:
          return static_cast<double>(events.num - num_unseen[at]);
        case Op::kAge:
          return seconds_between(log_.t()[events.last], pair.t, seconds_per_tick_);
        case Op::kSince:
          return static_cast<double>(source_age[at] - 1);
        case Op::kRank: {
          const auto& order = lookup.count.of == CountOf::kPair ? pair.source->events : *pair.latest;
          const auto place = std::lower_bound(order.begin(), order.end(), events.last, std::greater<>());
          return place != order.end() && *place == events.last ? static_cast<double>(place - order.begin())
                                                               : none;
        }
        case Op::kWithin: {
          const double ticks = std::floor(formula_.steps()[load.step].constant / seconds_per_tick_ *
                                          (1 + 1e-15));  // 20 s are 2e10 ns
          const double reach = static_cast<double>(pair.t) - static_cast<double>(log_.clocks()[asked.since]);
          eid_t from = asked.since;
          if (ticks < reach) from = std::max(from, cut_off(pair.t - static_cast<tick_t>(ticks), pair.cut));
          if (lists == nullptr) return static_cast<double>(pair.cut - from);
          if (from == asked.since) return static_cast<double>(events.num - num_unseen[at]);
          const uint64_t key = asked.key[static_cast<size_t>(&pair - asked.pair.data())];
          return static_cast<double>(events.num - lists->num_before(key, from));
        }
        default: {
          const double* const own = left;
          left += tails[at].num + 1;
          return lists->sum(tails[at], load.decay, own) * left[-1];
        }
      }
    };
    for_found([&](int64_t i, const Asked::Pair& pair, const EventLists::Prefix& events) {
      column[&pair - asked.pair.data()] = number(i, pair, events);
    });
    for (int64_t i = 0; i < found.num_repeated; ++i) {
      const int64_t place = found.repeated[static_cast<size_t>(i)];
      column[place] = column[place - 1];
    }
  }
}

void EventCounts::latest_destinations(const node_t* src, eid_t since, const eid_t* cut, int64_t size,
                                      int num_source, int num_all, node_t* of_source, node_t* of_all) const {
  if (lists(kSources) == nullptr || !is_whole()) {
    throw std::invalid_argument("these counts do not find the latest destinations");
  }
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  since = first_seen(since);
  parallel_for(size, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<eid_t> eids(static_cast<size_t>(std::max(num_source, num_all)));
    const auto write = [&](int num, int most, node_t* out) {
      std::fill(
          std::transform(eids.begin(), eids.begin() + num, out, [&](eid_t eid) { return log_.dst()[eid]; }),
          out + most, kNoNode);
    };
    for (int64_t i = begin; i < end; ++i) {
      write(last_of_source(src[i], since, cut[i], num_source, eids.data()), num_source,
            of_source + i * num_source);
      write(last_of_all(since, cut[i], num_all, eids.data()), num_all, of_all + i * num_all);
    }
  });
}

void EventCounts::last_events(const node_t* src, const node_t* dst, eid_t since, const eid_t* cut,
                              int64_t size, int most, eid_t* out) const {
  const EventLists *pairs = lists(kPairs), *sources = lists(kSources), *destinations = lists(kDestinations);
  if (pairs == nullptr || sources == nullptr || destinations == nullptr) {
    throw std::invalid_argument("last events are those of counts of pair, src and dst: count all three");
  }
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  since = first_seen(since);
  std::fill_n(out, size * kLasts * most, kNoEvent);
  for (int64_t i = 0; i < size; ++i) {
    const std::pair<const EventLists*, uint64_t> asked[kLasts] = {
        {pairs, pair_key(src[i], dst[i])},
        {pairs, pair_key(dst[i], src[i])},
        {sources, static_cast<uint64_t>(src[i])},
        {destinations, static_cast<uint64_t>(dst[i])},
    };
    for (const auto& [from, key] : asked) {
      from->last_events(key, since, cut[i], most, out);
      out += most;
    }
  }
}

/// Finds the events before the cut-offs of the pairs, with overlapping cache misses. Pairs that have none
/// drop out from step to step, without branches that cannot be predicted.
void EventCounts::find_earlier(const EventLists* lists, Asked& asked) const {
  struct Wanted {
    int64_t pair;
    uint64_t key;
    uint32_t place;
  };
  std::array<Wanted, Formula::kBlock> wanted;
  size_t size = 0;
  Found& found = asked.found;
  found.num = found.num_repeated = 0;
  uint64_t before = kNoKey;
  for (int64_t i = 0; i < asked.num; ++i) {
    const uint64_t key = asked.key[static_cast<size_t>(i)];
    const bool is_repeated = asked.is_at_same[static_cast<size_t>(i)] & (key == before);
    before = key;
    found.repeated[static_cast<size_t>(found.num_repeated)] = i;
    found.num_repeated += is_repeated;
    wanted[size] = {i, key, EventLists::kNone};
    size += (key != kNoKey) & !is_repeated;
  }
  if (lists != nullptr) {
    const auto for_wanted = [&](const auto& use) { std::for_each_n(wanted.begin(), size, use); };
    for_wanted([&](const Wanted& each) { lists->prefetch(each.key); });
    for_wanted([&](const Wanted& each) { lists->prefetch_slot(each.key); });
    size_t kept = 0;
    for (size_t i = 0; i < size; ++i) {
      wanted[kept] = wanted[i];
      wanted[kept].place = lists->find(wanted[i].key);
      kept += wanted[kept].place != EventLists::kNone;
    }
    size = kept;
    for_wanted([&](const Wanted& each) { lists->prefetch_end(each.place); });
    for_wanted([&](const Wanted& each) { lists->prefetch_group(each.place); });
  }
  for (size_t i = 0; i < size; ++i) {  // all events: given by positions
    const eid_t end = asked.pair[static_cast<size_t>(wanted[i].pair)].cut;
    const EventLists::Prefix events = lists != nullptr
                                          ? lists->prefix(wanted[i].place, end)
                                          : EventLists::Prefix{end - asked.since, end - 1, nullptr, 0};
    found.earlier[static_cast<size_t>(found.num)] = {wanted[i].pair, events};
    found.num += events.num > 0 && events.last >= asked.since;
  }
  for (int64_t i = 0; i < found.num; ++i) {
    const EventLists::Prefix& events = found.earlier[static_cast<size_t>(i)].events;
    __builtin_prefetch(log_.t() + events.last);
  }
}

}  // namespace tgflow
