// Exact counts of past events for pairs of nodes, as of any position of the log.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "tgflow/event_lists.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/formula.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

/// Kinds of counts; see tgflow/counts.py.
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
class EventCounts {
 public:
  static constexpr int kMaxDepth = 64;
  /// Most distinct destinations that ranks and covisits are of, and the rank of all others.
  static constexpr int kMaxRank = 32;
  /// Events looked through for each distinct destination wanted.
  static constexpr int kReach = 8;
  /// Keys of a kind that follows from others, such as transitions. Events of later keys do not count.
  static constexpr int64_t kMaxKeys = int64_t{1} << 26;

  /// Counts events of `log`, and answers with the results of `formula`. Throws std::invalid_argument if a
  /// step of it is of no count, of a sum of one without decay, or of a rank or a source's events where the
  /// count has none.
  EventCounts(const EventLog& log, std::vector<Count> counts, Formula formula, bool finds_latest = false,
              int64_t max_keys = kMaxKeys);

  /// Number of events read.
  int64_t size() const { return size_.load(std::memory_order_acquire); }
  /// Reads at least the first `position` events of the log. Concurrent queries wait for a few hundred
  /// events at most. Throws std::out_of_range if the log has fewer.
  void read_upto(int64_t position);

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

    int64_t width() const { return 1 + m; }
  };

  /// Writes the results of the formula for every pair, `out[size, 1 + m, width()]`. Counts the events before
  /// the limit and earlier than the time; the age of the last one is in ticks, -1 if there is none.
  void answer(const Pairs& pairs, double* out) const;

  /// Lists of events that `last_events` reads: those of the pair, of the reversed pair, from
  /// the source, and to the destination.
  static constexpr int kLasts = 4;
  /// Writes for each of `size` pairs the last `most` events before `cut`, at most size(), of each of those
  /// lists, `out[size, kLasts, most]`, the last one first, padded with kNoEvent. Throws std::invalid_argument
  /// unless pairs, sources and destinations are counted.
  void last_events(const node_t* src, const node_t* dst, const eid_t* cut, int64_t size, int most,
                   eid_t* out) const;

  /// Writes the last distinct destinations before `cut[i]`, at most size(): of `src[i]`, `of_source[size,
  /// num_source]`, and of all events, `of_all[size, num_all]`; the last one first, padded with kNoNode. Looks
  /// through the last kReach x num events. Throws std::invalid_argument unless made with `finds_latest`.
  void latest_destinations(const node_t* src, const eid_t* cut, int64_t size, int num_source, int num_all,
                           node_t* of_source, node_t* of_all) const;

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
  struct Kind;
  struct Source;
  struct Asked;
  struct Found;
  /// A number of a count, and the formula's step that it is.
  struct Load {
    Op op;
    size_t decay;  ///< Index among its list's decays.
    size_t step;
  };
  /// Numbers of counts with the same keys, which are looked up once.
  struct Lookup {
    Count count;
    std::vector<Load> loads;
  };
  static constexpr int64_t kHugePagesFrom = int64_t{16} << 20;

  static const Kind& kind_of(CountOf of);
  const EventLists* lists(List list) const { return lists_[list].get(); }
  EventLists::Earlier add(List list, uint64_t key, eid_t eid) {
    return lists_[list] == nullptr ? EventLists::Earlier{-1, kNoEvent} : lists_[list]->append(key, eid);
  }
  void prefetch(List list, uint64_t key) const {
    if (lists_[list] != nullptr) lists_[list]->prefetch(key);
  }
  void prefetch_event(eid_t eid) const;
  void add_event(eid_t eid);
  void add_related(eid_t eid);
  void add_following(eid_t eid, const eid_t* last, int num_last);
  void add_news(eid_t eid, const EventLists::Earlier& of_pair, const EventLists::Earlier& of_source);
  int last_of_source(node_t src, eid_t cut, int most, eid_t* out) const;
  int last_of_all(eid_t cut, int most, eid_t* out) const;
  eid_t cut_off(tick_t t, eid_t limit) const;
  void find_sources(Asked& asked) const;
  void load(const Lookup& lookup, const Asked& asked, double* columns) const;
  void find_earlier(const EventLists* lists, const Count& count, const Asked& asked, int64_t begin,
                    int64_t num, Found& found) const;

  const EventLog& log_;
  std::vector<Count> counts_;
  Formula formula_;
  std::vector<Lookup> lookups_;
  int depth_ = 0;           // most last destinations used
  int window_depth_ = 0;    // those of windows
  int distinct_depth_ = 0;  // distinct ones
  bool ranks_all_ = false;
  bool is_ordered_ = false;
  EventOrder order_;
  HostMemory memory_;
  Arena arena_{16, memory_, "counts of past events", kHugePagesFrom};
  std::array<std::unique_ptr<EventLists>, kNumLists> lists_;
  std::atomic<int64_t> size_{0};
  bool is_broken_ = false;
  std::mutex reading_on_;
  mutable std::shared_mutex mutex_;
};

}  // namespace tgflow
