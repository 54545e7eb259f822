// Destinations and (src, dst) pairs of a prefix of the log, and negatives drawn from them.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// An ordered pair of nodes as one key. Nodes fit 31 bits, so every key is valid for a `KeySet`.
inline uint64_t pair_key(node_t src, node_t dst) {
  return static_cast<uint64_t>(src) << 32 | static_cast<uint64_t>(dst);
}

/// Nodes in order of their first event. A prefix of the log is a prefix of `first`.
struct FirstSeen {
  std::vector<node_t> node;
  std::vector<eid_t> first;
  std::vector<int64_t> rank;  ///< By node: its index in `node`, or -1.

  void see(node_t v, eid_t eid);
  int64_t rank_of(node_t v) const;
};

/// Destinations and pairs in order of first occurrence. Append-only, so answers about the
/// first `n` events never change. Any number of threads may draw while one appends.
class PairIndex {
 public:
  /// Number of events seen.
  int64_t size() const;
  /// Adds the next `n` events of the log. Node ids must be in [0, kMaxNode].
  void append(const node_t* src, const node_t* dst, int64_t n);
  /// Distinct destinations among the first `before` events.
  int64_t num_destinations(eid_t before) const;
  /// Writes them in the order of their first events; there are `num_destinations`.
  void destinations(eid_t before, node_t* out) const;
  /// Destinations of `src`, in the order of their first events with it. The first call scans
  /// all pairs once, later calls only new ones.
  std::vector<node_t> destinations_of(node_t src, eid_t before);
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
    eid_t limit;           ///< Fallbacks are known before it; at most size() of the index.
    eid_t pairs_from = 0;  ///< Pairs must be first seen at or after this position (`draw_pairs`).
    bool collide = false;  ///< Whether a drawn destination may be the row's own (`draw_destinations`).
    bool replace = true;   ///< Whether the rows of one draw may have the same pair (`draw_pairs`).
  };

  /// Draws destinations known before `cut`, uniformly; never the row's positive unless they may `collide`.
  /// Returns the number of fallbacks: drawn from the destinations before `limit`, then from the sources
  /// before `limit`. Throws std::invalid_argument if the only node before `limit` is the positive itself.
  int64_t draw_destinations(const Request& request, node_t* out_dst) const;

  /// Draws pairs first seen in [pairs_from, cut), uniformly over the distinct ones, none of them a positive
  /// of this request. Without `replace` the n-th negatives of all rows are distinct pairs, for each n. A row
  /// without such a pair keeps its source and gets a destination as above; returns their number.
  int64_t draw_pairs(const Request& request, node_t* out_src, node_t* out_dst) const;

  /// Writes `num` destinations known before `cut`, drawn without replacement, and then `hard[size,
  /// num_hard]`: for each row distinct nodes other than its positive. `log_q[size, num + num_hard]` is 0 for
  /// hard ones, and for drawn ones the logarithm of how many could be drawn over how many were. Slots of
  /// missing (kNoNode) and repeated nodes hold the row's positive and -infinity.
  void draw_lists(const Request& request, const node_t* hard, int64_t num_hard, node_t* out_dst,
                  float* out_log_q) const;

 private:
  bool draw_destination(const Request& q, int64_t row, int64_t slot, eid_t known_before, uint64_t draw,
                        node_t* out) const;
  node_t any_source(const Request& q, int64_t row, int64_t slot) const;
  int64_t fill_destination(const Request& q, int64_t row, int64_t slot, node_t* out) const;
  /// Eligible pairs of a draw: those from number `begin` on that are in neither set.
  struct Eligible {
    int64_t begin;
    KeySet positives;
    KeySet used;
  };
  int64_t draw_pair(const Request& q, const Eligible& pairs, int64_t end, int64_t slot) const;
  bool fill_pair(const Request& q, int64_t slot, Eligible& pairs, node_t* out_src, node_t* out_dst) const;
  uint64_t pair(int64_t i) const {
    return pair_key(pair_src_[static_cast<std::size_t>(i)], pair_dst_[static_cast<std::size_t>(i)]);
  }

  mutable std::shared_mutex mutex_;
  int64_t size_ = 0;
  FirstSeen destinations_;
  std::vector<node_t> pair_src_, pair_dst_;
  std::vector<eid_t> pair_first_;
  std::vector<int64_t> pair_before_;  ///< By pair, as far as queried: its source's previous one, or -1.
  std::vector<int64_t> latest_pair_;  ///< By source: its last one so far, or -1.
  KeySet pairs_;
};

}  // namespace tgflow
