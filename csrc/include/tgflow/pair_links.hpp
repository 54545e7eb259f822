// The previous event of each event's pair of nodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "tgflow/detail/store_view.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/hash_table.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// An ordered pair of nodes as one key. Nodes fit 31 bits, so every key is valid for a `KeySet`.
inline uint64_t pair_key(node_t src, node_t dst) {
  return static_cast<uint64_t>(src) << 32 | static_cast<uint64_t>(dst);
}

/// For each event of a log the previous one of the same pair, so that one pass over the pairs tells which
/// events are the first of theirs from any position on. A shard has those of its sources. Thread-safe.
class PairLinks {
 public:
  PairLinks(const EventLog& log, Shard shard);

  /// Reads the events before `end` of the log; those that it forgot before are of no pair.
  void read_upto(eid_t end);
  /// Pairs of earlier events may be missing.
  eid_t first() const { return forgotten_.load(std::memory_order_acquire); }
  /// The previous event of the pair of one that was read, kNoEvent if none is held; up to 2^32 events back.
  eid_t before(eid_t eid) const {
    const uint32_t distance = distance_[eid - base_];
    return distance == 0 ? kNoEvent : eid - distance;
  }

 private:
  struct Latest {
    uint32_t src = ~0U, dst = ~0U, eid = 0;  ///< Lower half of the event's position.

    bool is_empty() const { return src == ~0U; }
    uint64_t hash() const { return mix64(pair_key(src, dst)); }
  };

  void forget();

  const EventLog& log_;
  const Shard shard_;
  const eid_t base_;
  std::mutex mutex_;
  std::atomic<eid_t> size_;
  std::atomic<eid_t> forgotten_;
  ReservedArray<uint32_t> distance_;  ///< 0: none.
  HashTable<Latest> latest_;          ///< By pair: its latest event.
};

}  // namespace tgflow
