// Destinations and (src, dst) pairs of a prefix of the log, and negatives drawn from them.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "tgflow/detail/store_view.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/hash_table.hpp"
#include "tgflow/pair_links.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Numbers of nodes from 0 on, of few of them within a horizon.
class NodeNumbers {
 public:
  explicit NodeNumbers(eid_t first) {
    if (first > 0) values_.use_small_pages();
  }
  /// The number of a node, or -1.
  int64_t of(node_t v) const { return v >= 0 && v < size_ ? values_[v] - 1 : -1; }
  void set(node_t v, int64_t number) {
    if (v >= size_) values_.grow(size_ = v + 1);
    values_[v] = number + 1;
  }

 private:
  ReservedArray<int64_t> values_{kMaxNode + 1};
  int64_t size_ = 0;
};

/// Nodes in order of their first event. A prefix of the log is a prefix of `first`.
struct FirstSeen {
  std::vector<node_t> node;
  std::vector<eid_t> first;
  NodeNumbers rank;  ///< Index in `node`.

  void see(node_t v, eid_t eid);
};

/// Marks of the events from `first` on: a bit each, and after every 512 the number of marked ones so far.
class EventMarks {
 public:
  explicit EventMarks(eid_t first) : first_(first) {}

  eid_t first() const { return first_; }
  /// Adds `num` events, at most as many as `room()`, of which the bits of `marks` are set.
  void append(uint64_t marks, int64_t num);
  /// Events from size() to the end of a word.
  int64_t room() const { return 64 - size_ % 64; }
  /// Marked events.
  int64_t num() const { return num_; }
  /// Those before a position.
  int64_t num_before(eid_t before) const;
  /// Whether the event at a position is.
  bool at(eid_t position) const {
    const eid_t i = position - first_;
    return words_[static_cast<std::size_t>(i / 64)] >> i % 64 & 1;
  }
  /// The position of the i-th one.
  eid_t nth(int64_t i) const;

 private:
  static constexpr int64_t kWords = 8;  // of a block

  const eid_t first_;
  std::vector<uint64_t> words_;
  std::vector<int64_t> before_;  ///< Marked ones before each block.
  int64_t size_ = 0;
  int64_t num_ = 0;
};

/// Destinations and pairs in order of first occurrence. Append-only, so answers about the
/// first `n` events never change. Any number of threads may draw while one appends. Pairs take most of the
/// memory and are needed by few, so they are added apart: a mark of the first event of each, whose columns
/// are read in the log, by links that indexes from several positions on have in common. A shard has the links
/// of the pairs of its sources, and all marks.
///
/// With types of nodes, drawn destinations have the type of the row's positive.
class PairIndex {
 public:
  static constexpr int64_t kNumTypes = 65'536;

  /// Of the events of `log` from position `first` on, or without pairs.
  explicit PairIndex(const EventLog* log = nullptr, Shard shard = {}, eid_t first = 0)
      : log_(log),
        shard_(shard),
        size_(first),
        num_pair_events_(first),
        destinations_{{}, {}, NodeNumbers(first)},
        sources_{{}, {}, NodeNumbers(first)},
        type_(first),
        rank_(first),
        pairs_(first),
        first_meetings_(first),
        latest_pair_(first) {}
  /// Of the events from position `first` on of the log of `other`.
  PairIndex(PairIndex& other, eid_t first);

  /// The position after the last event seen.
  int64_t size() const;
  /// Adds the next `n` events of the log. Node ids must be in [0, kMaxNode]. `type` has the types of the
  /// destinations, each in [0, kNumTypes) and always the same for a node; null without, for all events.
  void append(const node_t* src, const node_t* dst, const int64_t* type, int64_t n);
  /// Adds the events of the log before `end` that were not added, with the types of their destinations.
  void read(eid_t end, const int64_t* type);
  /// The position of the first event that counts.
  eid_t first() const { return pairs_.first(); }
  /// The position up to which pairs were added: without `read_pairs`, that of the second destination.
  int64_t num_pair_events() const;
  /// Adds the pairs of the events before `end` of the log. Throws std::invalid_argument for a shard, whose
  /// ranks take the two steps below.
  void read_pairs(int64_t end);
  /// Writes which of the events [num_pair_events(), end) are the first of a pair of the shard's sources, 2,
  /// or have the time of that one, 1.
  void find_pairs(int64_t end, uint8_t* is_first);
  /// Adds the first events of pairs among those, of the sources of all shards.
  void mark_pairs(int64_t end, const uint8_t* is_first);
  /// Distinct destinations among the first `before` events.
  int64_t num_destinations(eid_t before) const;
  /// Writes them in the order of their first events; there are `num_destinations`.
  void destinations(eid_t before, node_t* out) const;
  // The rest is of events whose pairs were added.
  /// Destinations of `src`, in the order of their first events with it. The first call scans
  /// all pairs once, later calls only new ones.
  std::vector<node_t> destinations_of(node_t src, eid_t before);
  /// Writes which of the events [begin, end) have a pair without an event at an earlier time.
  void first_meetings(eid_t begin, eid_t end, bool* out) const;
  /// Distinct pairs among the first `before` events.
  int64_t num_pairs(eid_t before) const;

  /// A draw: `num` negatives for each of `size` positives (src, dst).
  struct Request {
    uint64_t key;       ///< Key of the batch; every draw is (key, row, draw).
    const node_t* src;  ///< [size]
    const node_t* dst;  ///< [size]
    const eid_t* cut;   ///< [size]: candidates are known before this position; at most `limit`.
    int64_t size;
    int64_t num;
    eid_t limit;                 ///< Fallbacks are known before it; at most size() of the index.
    eid_t pairs_from = 0;        ///< Pairs must be first seen at or after this position (`draw_pairs`).
    bool collide = false;        ///< Whether a drawn destination may be the row's own (`draw_destinations`).
    bool replace = true;         ///< Whether the rows of one draw may have the same pair (`draw_pairs`).
    const bool* mask = nullptr;  ///< [size, num]: others repeat the positive; null: all (destinations).
  };

  /// Draws destinations known before `cut`, uniformly; never the row's positive unless they may `collide`.
  /// Returns the number of fallbacks: drawn from the destinations before `limit`, with types then from those
  /// of other types, then from the sources before `limit`. Throws std::invalid_argument if the only node
  /// before `limit` is the positive itself.
  int64_t draw_destinations(const Request& request, node_t* out_dst) const;

  /// Draws pairs first seen in [pairs_from, cut), uniformly over the distinct ones, none of them a positive
  /// of this request. Without `replace` the n-th negatives of all rows are distinct pairs, for each n. A row
  /// without such a pair keeps its source and gets a destination as above; returns their number.
  int64_t draw_pairs(const Request& request, node_t* out_src, node_t* out_dst) const;

  /// Writes `num` destinations known before `cut`, drawn without replacement, and then `hard[size,
  /// num_hard]`: for each row distinct nodes of the type of its positive, other than it. `log_q[size, num +
  /// num_hard]` is 0 for hard ones, and for drawn ones the logarithm of how many could be drawn over how many
  /// were. Slots of missing (kNoNode), repeated and other nodes hold the row's positive and -infinity.
  void draw_lists(const Request& request, const node_t* hard, int64_t num_hard, node_t* out_dst,
                  float* out_log_q) const;

  /// Writes the types of nodes, -1 for those that are no destinations so far. Only with types.
  void types(const node_t* nodes, int64_t n, int64_t* out) const;

 private:
  /// The destinations of one type in order of their first events, or all of them.
  struct Pool {
    const std::vector<node_t>* node;
    const std::vector<eid_t>* first;
    int64_t type;  ///< -1 for all.
  };
  void add(const node_t* src, const node_t* dst, const int64_t* type, int64_t n);
  void see_type(node_t v, int64_t type);
  uint8_t novelty(eid_t eid, const uint8_t* found) const;
  void mark_source(node_t src);
  void mark(const uint8_t* is_first, int64_t num);
  void check_range(eid_t begin, eid_t end) const;
  void read_links(int64_t end);
  Pool everyone() const { return {&destinations_.node, &destinations_.first, -1}; }
  /// The destinations that are drawn for a positive: those of its type, if there are types.
  Pool pool_of(node_t positive) const;
  /// Index of a node in a pool, or -1.
  int64_t rank_in(const Pool& pool, node_t v) const;
  /// What a row's destinations are drawn from.
  struct Choices {
    const std::vector<node_t>* node;
    int64_t skipped;  ///< Index of the node that is left out, or beyond all.
    int64_t num;
    uint64_t draw;  ///< Purpose of the draws.
  };
  Choices choices(const Request& q, const Pool& pool, int64_t row, eid_t known_before, uint64_t draw) const;
  Choices choices(const Request& q, int64_t row) const;
  node_t draw(const Request& q, const Choices& from, int64_t row, int64_t slot) const;
  node_t any_source(const Request& q, int64_t row, int64_t slot) const;
  /// Eligible pairs of a draw: those from number `begin` on that are in neither set.
  struct Eligible {
    int64_t begin;
    KeySet positives;
    KeySet used;
  };
  int64_t draw_pair(const Request& q, const Eligible& pairs, int64_t end, int64_t slot) const;
  bool fill_pair(const Request& q, int64_t slot, Eligible& pairs, node_t* out_src, node_t* out_dst) const;
  uint64_t pair(int64_t i) const {
    const eid_t first = pairs_.nth(i);
    return pair_key(log_->src()[first], log_->dst()[first]);
  }

  const EventLog* const log_;
  const Shard shard_;
  mutable std::shared_mutex mutex_;
  int64_t size_;
  int64_t num_pair_events_;  ///< The end of `pairs_`.
  FirstSeen destinations_;
  FirstSeen sources_;  ///< Of the events before the second destination.
  bool has_types_ = false;
  NodeNumbers type_;  ///< Of destinations so far.
  NodeNumbers rank_;  ///< Index among the destinations of its type.
  std::vector<std::vector<node_t>> node_of_type_;
  std::vector<std::vector<eid_t>> first_of_type_;
  EventMarks pairs_;
  EventMarks first_meetings_;
  std::vector<int64_t> pair_before_;  ///< By pair, as far as queried: its source's previous one, or -1.
  NodeNumbers latest_pair_;           ///< Last pair of a source so far.
  std::shared_ptr<PairLinks> links_;  ///< Once pairs are read.
};

}  // namespace tgflow
