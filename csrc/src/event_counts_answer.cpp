// What `EventCounts` answers.
#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include "tgflow/event_counts.hpp"
#include "tgflow/pair_index.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGroup = 16;  // pairs whose lists are on the way at the same time

int64_t age_of(tick_t earlier, tick_t t) {
  const uint64_t age = static_cast<uint64_t>(t) - static_cast<uint64_t>(earlier);
  return static_cast<int64_t>(std::min<uint64_t>(age, std::numeric_limits<int64_t>::max()));
}

/// Under which keys a count's list is asked.
struct Key {
  uint64_t key = 0;
  bool is_one = false;  ///< False where there is nothing to ask about.

  bool operator==(const Key& other) const { return key == other.key && is_one == other.is_one; }
};

}  // namespace

/// All pairs, one after the other, and as of when they are asked about.
struct EventCounts::Asked {
  struct Pair {
    node_t src;
    node_t dst;
    eid_t cut;
    tick_t t;
  };
  std::vector<Pair> pair;
  std::vector<node_t> last;  ///< By pair: the source's last destinations, kNoNode where there is none.
  int depth = 0;             ///< How many each has.

  /// Whether a pair is asked about as of when the one before is.
  bool is_as_before(size_t i) const { return pair[i].cut == pair[i - 1].cut && pair[i].t == pair[i - 1].t; }

  Key key(const Count& count, size_t i) const {
    const auto src = static_cast<uint64_t>(pair[i].src), dst = static_cast<uint64_t>(pair[i].dst);
    const auto p = [&] {
      return last[i * static_cast<size_t>(depth) + static_cast<size_t>(count.depth) - 1];
    };
    switch (count.of) {
      case CountOf::kPair:
        return {pair_key(pair[i].src, pair[i].dst), true};
      case CountOf::kReverse:
        return {pair_key(pair[i].dst, pair[i].src), true};
      case CountOf::kSrc:
      case CountOf::kSrcAsDst:
        return {src, true};
      case CountOf::kDst:
      case CountOf::kDstAsSrc:
      case CountOf::kContinuation:
        return {dst, true};
      case CountOf::kTransition:
      case CountOf::kWindow:
        return {pair_key(p(), pair[i].dst), p() != kNoNode};
      case CountOf::kTransitionRow:
      case CountOf::kWindowRow:
        return {static_cast<uint64_t>(p()), p() != kNoNode};
      case CountOf::kContinuationAll:
      case CountOf::kAll:
        break;
    }
    return {0, true};
  }
};

/// Where the answers to a count go, for all pairs.
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

/// What there is to answer about a pair: what the one before it was answered, or by a part of a list.
struct EventCounts::Found {
  bool is_repeated = false;
  EventLists::Prefix prefix;
};

/// The first position at or after which nothing is earlier than `t`, at most `limit`. Nearly always near it.
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

/// Answers the counts of the same keys as `count`, which are looked up once.
void EventCounts::answer_alike(const Count& count, const Asked& asked, const std::vector<Answer>& out) const {
  const EventLists* lists = this->lists(list_of(count.of));
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

/// Finds what is before the cut-offs of the `num` pairs from `begin` on, with all of them on the way at once.
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
  if (lists == nullptr) {  // of all events, whose positions say it all
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
