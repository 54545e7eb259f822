// Which destinations and which (src, dst) pairs a prefix of the log holds, and negatives drawn from them.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "tgflow/hash_table.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// An ordered pair of nodes as one key. Nodes fit 31 bits, so every key is one that a `KeySet` takes.
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

/// Destinations and pairs in order of first occurrence. Only ever appended to, so what is asked about the
/// first `n` events has one answer for good. Any number of threads may draw while one appends.
class PairIndex {
 public:
  /// How many events it has seen.
  int64_t size() const;
  /// Takes the next `n` events of the log. Node ids must be in [0, kMaxNode].
  void append(const node_t* src, const node_t* dst, int64_t n);
  /// Distinct destinations among the first `before` events.
  int64_t num_destinations(eid_t before) const;
  /// Writes them in the order of their first events, as many as `num_destinations` says.
  void destinations(eid_t before, node_t* out) const;
  /// Those that `src` has had an event with, in the order of their first events with it. The first time it
  /// is asked, and then for what came since, the pairs are looked through once.
  std::vector<node_t> destinations_of(node_t src, eid_t before);
  /// Distinct pairs among the first `before` events.
  int64_t num_pairs(eid_t before) const;

  /// What to draw: `num` negatives for each of `size` positives (src, dst).
  struct Request {
    uint64_t key;       ///< Of the batch; every draw is (key, row, draw).
    const node_t* src;  ///< [size]
    const node_t* dst;  ///< [size]
    const eid_t* cut;   ///< [size]: candidates are known before this position; at most `limit`.
    int64_t size;
    int64_t num;
    eid_t limit;           ///< Where the fallbacks may look, at most size() of the index.
    eid_t pairs_from = 0;  ///< Pairs must be first seen at or after this position (`draw_pairs`).
    bool collide = false;  ///< Whether a drawn destination may be the row's own (`draw_destinations`).
    bool replace = true;   ///< Whether the rows of one draw may have the same pair (`draw_pairs`).
  };

  /// Draws destinations known before `cut`, uniformly; never the row's positive unless they may `collide`.
  /// Returns how many had to be looked for elsewhere: among the destinations before `limit`, then among the
  /// sources before `limit`.
  /// Throws std::invalid_argument if the only node before `limit` is the positive itself.
  int64_t draw_destinations(const Request& request, node_t* out_dst) const;

  /// Draws pairs first seen in [pairs_from, cut), uniformly over the distinct ones, none of them a positive
  /// of this request. Without `replace` the n-th negatives of all rows are distinct pairs, for each n. A row
  /// without such a pair keeps its source and gets a destination as above; returns how many.
  int64_t draw_pairs(const Request& request, node_t* out_src, node_t* out_dst) const;

 private:
  bool draw_destination(const Request& q, int64_t row, int64_t slot, eid_t known_before, uint64_t draw,
                        node_t* out) const;
  node_t any_source(const Request& q, int64_t row, int64_t slot) const;
  int64_t fill_destination(const Request& q, int64_t row, int64_t slot, node_t* out) const;
  /// Which pairs a draw may take: those from number `begin` on that are in neither set.
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
  std::vector<int64_t> pair_before_;  ///< By pair, as far as anybody asked: its source's one before, or -1.
  std::vector<int64_t> latest_pair_;  ///< By source: its last one so far, or -1.
  KeySet pairs_;
};

}  // namespace tgflow
