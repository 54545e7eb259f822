// Append-only lists of events by key, of which any prefix of the log can be asked.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tgflow/arena.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/hash_table.hpp"

namespace tgflow {

/// How the weight of an event falls: to a half within each `half_life`.
struct Decay {
  double half_life;  ///< In ticks, or in positions of the log; above 0.
  bool by_events;    ///< In positions.

  bool operator==(const Decay& other) const {
    return half_life == other.half_life && by_events == other.by_events;
  }
};

/// For each key the events that were appended, and at each of them the decayed sums of those so far.
///
/// An event is at its time in sums, and a sum is as of the log's clock after its event, so that late events
/// are summed exactly. A list is one event in place, or blocks, each half as large as all before it: nothing
/// moves, and what is near the end, which nearly all ask for, is found first. Appending and reading take
/// turns.
class EventLists {
 public:
  /// Lists of events of `log`, with a sum for each of `decays`. Their blocks are in `arena`.
  EventLists(const EventLog& log, std::vector<Decay> decays, Arena& arena)
      : log_(log), decays_(std::move(decays)), arena_(arena) {}

  /// Adds an event to the list of `key` and returns how many that held. Events come in the order of the log.
  int64_t append(uint64_t key, eid_t eid);

  /// The part of a list before a cut-off.
  struct Prefix {
    int64_t num = 0;
    eid_t last = kNoEvent;
    const int64_t* entry = nullptr;  ///< Of `last` where it is in a block.
  };
  /// The number of the list of `key`, or -1.
  int32_t find(uint64_t key) const {
    return index_.find(mix64(key), [&](int32_t number) { return list(number).key == key; });
  }
  void prefetch(uint64_t key) const { index_.prefetch(mix64(key)); }
  void prefetch_end(int32_t number) const { __builtin_prefetch(list(number).tail); }
  /// The events before `cut` in a list of that number.
  Prefix prefix(int32_t number, eid_t cut) const;
  /// Writes up to `most` of the last events before `cut` of a key, the last one first; returns how many.
  int last_events(uint64_t key, eid_t cut, int most, eid_t* out) const;
  /// The sum of a prefix that is not empty, by `decays[decay]`, as of time `t` and log position `cut`.
  double decayed(const Prefix& prefix, size_t decay, tick_t t, eid_t cut) const;

  /// Bytes beside blocks.
  int64_t bytes() const {
    return static_cast<int64_t>(chunks_.size() * sizeof(List)) * kChunk + index_.bytes();
  }

 private:
  struct Block {
    const Block* before;
    int64_t base;  ///< Events in blocks before.

    // Entries follow: an event, and its sums.
    int64_t* entry(int64_t i, int64_t width) { return reinterpret_cast<int64_t*>(this + 1) + i * width; }
    const int64_t* entry(int64_t i, int64_t width) const {
      return reinterpret_cast<const int64_t*>(this + 1) + i * width;
    }
  };
  struct List {
    uint64_t key;
    int64_t num;
    union {
      eid_t only;   ///< While it has one event.
      Block* tail;  ///< From the second on.
    };
  };
  static constexpr int64_t kChunk = 1024;  // lists

  static int64_t capacity(int64_t base) { return base < 4 ? 2 : base / 2; }
  int64_t width() const { return 1 + static_cast<int64_t>(decays_.size()); }
  List& list(int32_t number) { return chunks_[static_cast<size_t>(number / kChunk)][number % kChunk]; }
  const List& list(int32_t number) const {
    return chunks_[static_cast<size_t>(number / kChunk)][number % kChunk];
  }
  List& list_of(uint64_t key);
  Block* new_block(const Block* before, int64_t base);
  void write(int64_t* entry, const int64_t* before, eid_t eid);
  double weight(size_t decay, eid_t eid) const;

  const EventLog& log_;
  std::vector<Decay> decays_;
  RowIndex index_;
  std::vector<std::unique_ptr<List[]>> chunks_;
  int32_t num_lists_ = 0;
  Arena& arena_;
};

}  // namespace tgflow
