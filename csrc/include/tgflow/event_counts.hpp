// Exact counts of past events for pairs of nodes, as of any position of the log.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "tgflow/detail/store_view.hpp"
#include "tgflow/event_lists.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/formula.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// Kinds of counts; see tgflow/graph/counts.py.
enum class CountOf : uint8_t {
  kPair,
  kReverse,
  kSrc,
  kDst,
  kSrcAsDst,
  kDstAsSrc,
  kTransition,
  kTransitionRow,
  kWindow,
  kWindowRow,
  kContinuation,
  kContinuationAll,
  kSrcNew,
  kDstNew,
  kDstFirst,
  kSrcSwitch,
  kDstSwitch,
  kOwnTransition,
  kCovisit,
  kPairRelation,
  kSrcRelation,
  kDstRelation,
  kRelation,
  kAll,
};

struct Count {
  CountOf of;
  int depth;    ///< Index among the source's last destinations, from 1.
  Decay decay;  ///< None if its half-life is 0.

  bool decays() const { return decay.half_life > 0; }
  bool has_keys_of(const Count& other) const { return of == other.of && depth == other.depth; }
};

/// Follows a log and answers counts. An answer about the first `n` events never changes. Any
/// number of threads may query, and let it read on in the log, concurrently.
///
/// Each key of a list is in a part: those of a source's own lists in the source's, others by hash. The counts
/// of a shard have the keys of its parts, and are read and queried in steps, between which ranks exchange
/// what they found; one process takes the same steps at once.
class EventCounts {
 public:
  static constexpr int kMaxDepth = 64;
  /// Most distinct destinations that ranks and covisits are of, and the rank of all others.
  static constexpr int kMaxRank = 32;
  /// Events looked through for each distinct destination wanted.
  static constexpr int kReach = 8;
  /// Keys of a kind that follows from others, such as transitions, by part. Events of later keys do not
  /// count.
  static constexpr int64_t kMaxKeys = int64_t{1} << 20;

  /// Counts events of `log` from `first` on in the lists of `shard`, and answers with the results of
  /// `formula`. Throws std::invalid_argument if a step of it is of no count, of a sum of one without decay,
  /// or of a rank or a source's events where the count has none.
  EventCounts(const EventLog& log, std::vector<Count> counts, Formula formula, bool finds_latest = false,
              double seconds_per_tick = 1, int64_t max_keys = kMaxKeys, Shard shard = {}, eid_t first = 0);

  /// The first event that is counted.
  eid_t first() const { return first_; }
  /// Whether questions may be about the events from any later position on: no list, and no sum, depends on
  /// which event is the first. Then events that the log forgot are dropped, while later ones are read.
  bool is_for_any_since() const { return is_for_any_since_; }
  /// Number of events read.
  int64_t size() const { return size_.load(std::memory_order_acquire); }
  /// Reads at least the first `position` events of the log. Concurrent queries wait for a few hundred
  /// events at most. Throws std::out_of_range if the log has fewer, std::invalid_argument for a shard.
  void read_upto(int64_t position);

  // The steps of reading the events [size(), end). Each throws std::invalid_argument if out of turn, or of
  // another range than the one before.
  /// Adds them to the lists of the shard's sources. Writes `facts[n, num_facts()]` of those `n` events.
  void read_sources(int64_t end, int32_t* facts);
  /// Adds them to the shard's other lists, from the facts of all of them. Writes whether each is the first of
  /// its transition, by the lists of the shard, `is_new[end - size()]`.
  void read_others(int64_t end, const int32_t* facts, uint8_t* is_new);
  /// Adds those that are the first of their transition, by the lists of any shard.
  void read_continuations(int64_t end, const uint8_t* is_new);
  /// Number of those events whose source is the shard's.
  int64_t num_own(int64_t end) const;
  /// Facts of an event, for lists of other parts than its source's: the source's last destinations, whether
  /// the pair is new, and the last distinct destinations; kNoNode for missing ones.
  int64_t num_facts() const { return num_last_ + 1 + num_covisited_; }
  /// Whether the first events of transitions are counted.
  bool continues() const { return lists(kContinuations) != nullptr || lists(kAllContinuations) != nullptr; }
  bool is_whole() const { return shard_.num_other_parts == 0; }

  const EventLog& log() const { return log_; }
  /// Numbers per pair in an answer.
  int64_t width() const { return formula_.width(); }

  /// Queried pairs: each of `size` events (src, dst), and `m` negatives of each.
  struct Pairs {
    const node_t* src;           ///< [size]
    const node_t* dst;           ///< [size]
    const node_t* negative_src;  ///< [size, m], or null: the events' own.
    const node_t* negative_dst;  ///< [size, m]
    const tick_t* t;             ///< [size]
    const eid_t* limit;          ///< [size]: events before this position count, at most size().
    const int64_t* relation;     ///< [size], or null: all 0.
    int64_t size;
    int64_t m;
    eid_t since = 0;  ///< Events from this position on count; after first() if `is_for_any_since`.

    int64_t width() const { return 1 + m; }
  };

  /// Writes the results of the formula for every pair, `out[size, 1 + m, width()]`. Counts the events before
  /// the limit and earlier than the time; the age of the last one is in seconds, -1 if there is none. As
  /// doubles, or floats that are rounded from them. On several threads if `is_awaited`, or if there are many.
  template <typename T>
  void answer(const Pairs& pairs, T* out, bool is_awaited = false) const;

  /// Queried pairs one by one, in columns of `size`: each as `Pairs`.
  struct Rows {
    const node_t* src;
    const node_t* dst;
    const tick_t* t;
    const eid_t* limit;
    const int64_t* relation;
    int64_t size;
  };
  // The steps of an answer. A lookup is of the counts with the same keys; the first `num_own_lookups` are of
  // the lists of the queried source.
  /// Writes the numbers of sources of the shard, `found[size, num_found()]`.
  void answer_sources(const Rows& rows, double* found) const;
  /// Writes key and part of each other lookup, `keys[num_keys(), size]` and `parts`; the part is -1, and the
  /// key kNoKey, where there is none.
  void find_keys(const Rows& rows, const double* found, uint64_t* keys, int64_t* parts) const;
  /// Writes the numbers of keys of the shard: of `num[k]` keys of other lookup `k`, one lookup after the
  /// other, `out[size, num_loads()]`. Reads t and limit of the rows.
  void answer_keys(const int64_t* num, const uint64_t* keys, const Rows& rows, double* out) const;
  /// Writes the results of the formula, `out[size, width()]`, from `found` and the numbers of the keys,
  /// `others[num_keys(), size, num_loads()]`.
  void evaluate(const Rows& rows, const double* found, const double* others, double* out) const;
  /// Numbers of a pair that its source's lists have, and the nodes that other keys are made of.
  int64_t num_found() const { return num_own_loads_ + depth_ + covisit_depth_; }
  /// Other lookups.
  int64_t num_keys() const { return static_cast<int64_t>(lookups_.size()) - num_own_lookups_; }
  /// Numbers of each other lookup.
  std::vector<int64_t> loads() const;
  /// Most of them.
  int64_t num_loads() const;
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  /// Lists of events that `last_events` reads: those of the pair, of the reversed pair, from
  /// the source, and to the destination.
  static constexpr int kLasts = 4;
  /// Writes for each of `size` pairs the last `most` events from `since` on, before `cut`, at most size(), of
  /// each of those lists, `out[size, kLasts, most]`, the last one first, padded with kNoEvent. Throws
  /// std::invalid_argument unless pairs, sources and destinations are counted.
  void last_events(const node_t* src, const node_t* dst, eid_t since, const eid_t* cut, int64_t size,
                   int most, eid_t* out) const;

  /// Writes the last distinct destinations from `since` on, before `cut[i]`, at most size(): of `src[i]`,
  /// `of_source[size, num_source]`, and of all events, `of_all[size, num_all]`; the last one first, padded
  /// with kNoNode. Looks through the last kReach x num events. Throws std::invalid_argument unless made with
  /// `finds_latest`.
  void latest_destinations(const node_t* src, eid_t since, const eid_t* cut, int64_t size, int num_source,
                           int num_all, node_t* of_source, node_t* of_all) const;

  /// Bytes of all lists.
  int64_t bytes() const;

 private:
  enum List : uint8_t {
    kPairs,
    kSources,
    kDestinations,
    kTransitions,
    kTransitionRows,
    kWindows,
    kWindowRows,
    kContinuations,
    kAllContinuations,
    kNewAtSources,
    kNewAtDestinations,
    kFirstAtDestinations,
    kSwitchesFrom,
    kSwitchesTo,
    kOwnTransitions,
    kCovisits,
    kRelatedPairs,
    kRelatedSources,
    kRelatedDestinations,
    kRelated,
    kEvents,
    kNumLists,
  };
  /// Lists and keys of a kind of count.
  struct Kind {
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
      return (key == kSrc && list != kDestinations) || key == kOwnLastAndDst || key == kPair;
    }
    /// Whether its list is in the part of the queried source.
    bool is_own() const { return is_of_source() || key == kPairAndRelation; }
  };
  struct Source;
  struct Asked;
  struct Found;
  /// A number of a count, and the formula's step that it is.
  struct Load {
    Op op;
    size_t step;
    size_t decay;  ///< Its number in the list.
  };
  /// Numbers of counts with the same keys, which are looked up once.
  struct Lookup {
    Count count;
    std::vector<Load> loads;
    bool is_by_source = false;  ///< Whether a number goes by the source's events,
    bool has_num = false;       ///< or is that of all or of the latest ones.
  };
  static constexpr uint64_t kOneKey = 0;  // key of single lists

  static const Kind& kind_of(CountOf of);
  const EventLists* lists(List list) const { return lists_[list].get(); }
  static bool has_pairs(List list);
  static int64_t part_of(List list, uint64_t key);
  bool has(int64_t part) const { return shard_.local(part) != kNotHeld; }
  int64_t add(List list, uint64_t key, eid_t eid) { return add(list, key, part_of(list, key), eid); }
  int64_t add(List list, uint64_t key, int64_t part, eid_t eid) {
    return lists_[list] == nullptr || !has(part) ? -1 : lists_[list]->append(key, part, eid);
  }
  template <typename Use>
  void for_keys_ahead(eid_t eid, const int32_t* facts, const Use& use) const;
  void prefetch_ahead(eid_t eid, eid_t end, const int32_t* facts) const;
  void add_to_source(eid_t eid, int32_t* facts);
  bool add_to_others(eid_t eid, const int32_t* facts);
  void check_turn(int64_t end, int64_t done, int64_t before) const;
  void sweep(int64_t num);
  eid_t first_seen(eid_t since) const;
  int last_of_source(node_t src, eid_t since, eid_t cut, int most, eid_t* out) const;
  int last_of_all(eid_t since, eid_t cut, int most, eid_t* out) const;
  eid_t cut_off(tick_t t, eid_t limit) const;
  void find_sources(Asked& asked) const;
  void find_latest(Asked& asked) const;
  void find_keys(const Count& count, Asked& asked) const;
  void load(const Lookup& lookup, Asked& asked, double* columns) const;
  void load_loops(const Asked& asked, double* columns) const;
  void find_earlier(const EventLists* lists, Asked& asked) const;
  template <typename PairAt, typename Use>
  void for_blocks(int64_t size, eid_t since, const PairAt& pair_at, const Use& use,
                  bool is_awaited = false) const;
  static int64_t column_of(const Load& load) { return static_cast<int64_t>(load.step) * Formula::kBlock; }
  template <typename Use>
  void for_own_loads(const Use& use) const {
    for (size_t n = 0; n < static_cast<size_t>(num_own_lookups_); ++n) {
      for (const Load& load : lookups_[n].loads) use(load);
    }
  }

  const EventLog& log_;
  std::vector<Count> counts_;
  Formula formula_;
  double seconds_per_tick_;
  std::vector<Lookup> lookups_;
  const Shard shard_;
  eid_t first_;
  bool is_for_any_since_;
  eid_t swept_ = 0;  ///< Earlier events may be missing.
  int64_t num_own_lookups_ = 0, num_own_loads_ = 0;
  int depth_ = 0;                         // most last destinations used
  int window_depth_ = 0;                  // those of windows
  int distinct_depth_ = 0;                // distinct ones
  int covisit_depth_ = 0;                 // those of covisits
  int num_last_ = 0, num_covisited_ = 0;  // of an event's facts
  bool ranks_all_ = false;
  bool needs_source_ = false;                       // of queried pairs
  std::unique_ptr<ReservedArray<uint32_t>> ranks_;  ///< Of events: earlier ones of the source; if needed.
  std::array<std::unique_ptr<EventLists>, kNumLists> lists_;
  std::atomic<int64_t> size_;
  int64_t num_of_sources_, num_of_others_;  // events in the lists of sources, and in others
  bool is_broken_ = false;
  std::mutex reading_on_;
  mutable std::shared_mutex mutex_;
  /// Events of an answer of floats and their numbers: what is predicted is learned next.
  struct Answered {
    using Event = std::array<int64_t, 5>;  // src, dst, t, cut-off and relation
    eid_t since;
    std::vector<Event> events;
    std::vector<float> numbers;
  };
  mutable std::mutex remembering_;
  mutable std::shared_ptr<const Answered> answered_;
};

}  // namespace tgflow
