// Append-only lists of events by key, readable as of any prefix of the log.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "tgflow/arena.hpp"
#include "tgflow/detail/store_view.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/hash_table.hpp"

namespace tgflow {

/// What the age of an event is measured in.
enum class Clock : uint8_t {
  kSeconds,
  kEvents,  ///< Positions of the log.
  kSource,  ///< Events of its source.
};

/// Decay of an event's weight: it halves with each `half_life`, above 0.
struct Decay {
  double half_life;
  Clock clock;

  bool operator==(const Decay& other) const { return half_life == other.half_life && clock == other.clock; }
};

/// Events by key, and at each of them the decayed sums of the list so far.
///
/// In sums an event counts from its time, and a sum is as of the log's clock after its event, so that late
/// events are summed exactly. A list is one event in place, or blocks, each a half or a quarter of all before
/// it: nothing moves, and the end of a list, where most queries are, is found first. Appending and reading
/// must not overlap.
class EventLists {
 public:
  /// Lists of events of `log`, with a sum for each of `decays`, which read `sources`, the lists of the events
  /// of each source, if they go by a source's events. Their blocks are in `arena`. After `max_keys` keys of a
  /// part, events of its other keys are dropped.
  EventLists(const EventLog& log, const std::unique_ptr<EventLists>& sources, std::vector<Decay> decays,
             double seconds_per_tick, Arena& arena, int64_t max_keys)
      : log_(log),
        sources_(sources),
        decays_(std::move(decays)),
        seconds_per_tick_(seconds_per_tick),
        arena_(arena),
        max_keys_(max_keys) {}

  /// Adds an event to the list of `key` of a part, below `kParts`, in the order of the log. Returns the
  /// number of events in the list before, -1 if the event was dropped.
  int64_t append(uint64_t key, int64_t part, eid_t eid);

  /// The part of a list before a cut-off.
  struct Prefix {
    int64_t num = 0;
    eid_t last = kNoEvent;
    const int64_t* entry = nullptr;  ///< Entry of `last` if it is in a block.
  };
  /// The number of the list of `key`, or -1.
  int32_t find(uint64_t key) const {
    return index_.find(mix64(key), [&](int32_t number) { return list(number).key == key; });
  }
  void prefetch(uint64_t key) const { index_.prefetch(mix64(key)); }
  // `find` and then `prefix` in steps, each of which prefetches what the next one reads: the hash of a
  // key, the number of its likely list, or -1 if it has none; and the actual number.
  uint64_t hash_of(uint64_t key) const {
    const uint64_t hash = mix64(key);
    index_.prefetch(hash);
    return hash;
  }
  int32_t likely(uint64_t hash) const {
    const int32_t number = index_.find(hash, [](int32_t) { return true; });
    if (number >= 0) __builtin_prefetch(&list(number));
    return number;
  }
  int32_t confirmed(int32_t number, uint64_t key) const {
    return list(number).key == key ? number : find(key);
  }
  void prefetch_end(int32_t number) const {
    if (!list(number).is_one()) __builtin_prefetch(list(number).tail());
  }
  /// The events before `cut` in a list by its number.
  Prefix prefix(int32_t number, eid_t cut) const;
  /// The number of events before `cut` of a key.
  int64_t num_before(uint64_t key, eid_t cut) const {
    const int32_t number = find(key);
    return number < 0 ? 0 : prefix(number, cut).num;
  }
  /// Writes up to `most` of the last events before `cut` of a key that `is_wanted`, of its last `reach`
  /// ones, the last one first; returns how many.
  template <typename IsWanted>
  int last_events_if(uint64_t key, eid_t cut, int64_t reach, int most, eid_t* out,
                     const IsWanted& is_wanted) const {
    const int32_t number = find(key);
    if (number < 0) return 0;
    const Prefix known = prefix(number, cut);
    if (known.num == 0 || most == 0) return 0;
    int num = 0;
    const Block* block = known.entry == nullptr ? nullptr : list(number).tail();
    for (int64_t rank = known.num - 1; rank >= std::max<int64_t>(known.num - reach, 0) && num < most;
         --rank) {
      while (block != nullptr && block->base() > rank) block = block->before;
      const eid_t eid = block == nullptr ? known.last : block->entry(rank - block->base(), width())[0];
      if (is_wanted(eid)) out[num++] = eid;
    }
    return num;
  }
  /// Writes up to `most` of the last events before `cut` of a key, the last one first; returns how many.
  int last_events(uint64_t key, eid_t cut, int most, eid_t* out) const {
    return last_events_if(key, cut, most, most, out, [](eid_t) { return true; });
  }
  /// The moment of a query.
  struct Moment {
    tick_t t;
    eid_t cut;
    int64_t source_age;  ///< Events of the query's source from the prefix's last one on.
  };
  /// The sum of a nonempty prefix by `decays[decay]`, as of a moment.
  double decayed(const Prefix& prefix, size_t decay, const Moment& moment) const;

  /// Bytes outside of blocks.
  int64_t bytes() const {
    return static_cast<int64_t>(chunks_.size() * sizeof(List)) * kChunk + index_.bytes();
  }

 private:
  struct Block {
    const Block* before;
    int32_t number;  ///< Number of blocks before it.
    uint32_t num;    ///< Events in it; all but a list's last block are full.

    // Entries follow: an event, and its sums.
    int64_t* entry(int64_t i, int64_t width) { return reinterpret_cast<int64_t*>(this + 1) + i * width; }
    const int64_t* entry(int64_t i, int64_t width) const {
      return reinterpret_cast<const int64_t*>(this + 1) + i * width;
    }
    int64_t base() const { return Growth::of_lists().base[number]; }
    int64_t capacity() const { return Growth::of_lists().capacity[number]; }
  };
  /// Number of events before the n-th block of a list, and its capacity.
  struct Growth {
    static constexpr int kMost = 128;  // more than any log fills
    int64_t base[kMost];
    int64_t capacity[kMost];

    static const Growth& of_lists();
  };
  struct List {
    uint64_t key;
    uint64_t events;  ///< With one event, twice it plus one; then the address of the last block.

    bool is_one() const { return events % 2 == 1; }
    eid_t one() const { return static_cast<eid_t>(events / 2); }
    Block* tail() const { return reinterpret_cast<Block*>(events); }
  };
  static constexpr int64_t kChunk = 256;  // lists

  int64_t width() const { return 1 + static_cast<int64_t>(decays_.size()); }
  List& list(int32_t number) { return chunks_[static_cast<size_t>(number / kChunk)][number % kChunk]; }
  const List& list(int32_t number) const {
    return chunks_[static_cast<size_t>(number / kChunk)][number % kChunk];
  }
  bool add_list(uint64_t key, int64_t part, eid_t eid, int32_t* number);  // number: -1 if dropped
  Block* new_block(const Block* before);
  void write(int64_t* entry, const int64_t* before, eid_t eid);
  double age_at(Clock clock, eid_t earlier, eid_t eid) const;
  double weight(size_t decay, eid_t eid) const;
  double seconds(tick_t earlier, tick_t later) const {
    return seconds_between(earlier, later, seconds_per_tick_);
  }

  const EventLog& log_;
  const std::unique_ptr<EventLists>& sources_;
  std::vector<Decay> decays_;
  double seconds_per_tick_;
  DenseIndex index_;
  std::vector<std::unique_ptr<List[]>> chunks_;
  int32_t num_lists_ = 0;
  std::array<int64_t, kParts> num_keys_{};  ///< Of each part.
  Arena& arena_;
  int64_t max_keys_;
};

}  // namespace tgflow
