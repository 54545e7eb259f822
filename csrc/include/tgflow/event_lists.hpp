// Append-only lists of events by key, readable as of any prefix of the log.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tgflow/detail/mix.hpp"
#include "tgflow/detail/store_view.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/word_pool.hpp"

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

/// Sizes of tables in words, and their slots by width: small ones are full, large ones up to five sixths.
struct TableSizes {
  static constexpr int kClasses = 80;
  static constexpr int64_t kScanned = 8;  // slots
  int64_t words[kClasses]{};
  uint32_t slots[kClasses][9]{};

  constexpr TableSizes() {
    int64_t size = 2;
    for (int i = 0; i < kClasses; ++i) {
      words[i] = size;
      for (int width = 4; width <= 8; ++width)
        slots[i][width] = static_cast<uint32_t>((8 * size - 4) / width);
      size = std::min(size < 8 ? size + 1 : size + size / (size < 4096 ? 4 : 2), WordPool::kLimit);
    }
  }
  static bool has_room(int64_t slots, int64_t num) {
    return num <= (slots <= kScanned ? slots : std::max(kScanned, slots * 5 / 6));
  }
};

inline constexpr TableSizes kTableSizes;

/// Events by key, with decayed sums of each list.
///
/// In sums an event counts from its time, and a sum is as of the log's clock after its event, so that late
/// events are summed exactly. Appending and reading must not overlap.
///
/// Keys are of one node, or of two: then each first one has a table of its second ones, whose slots are as
/// narrow as these and the lists' places are. A list is one event in its slot, a piece of up to `kFirst`
/// events, or blocks, each a quarter of all before it: the end of a list, where most queries are, is found
/// first. Events are positions from the first one counted, of 4 bytes. Sums are kept of each `kGroup`-th
/// event only: those in between follow from the events since then, with the same bits.
class EventLists {
 public:
  /// Most events counted.
  static constexpr int64_t kMost = WordPool::kLimit;
  static constexpr uint32_t kNone = 0;

  /// Lists of events of `log` from `first` on, with a sum for each of `decays`. `ranks` has for each of them
  /// the number of earlier ones of its source, if a decay goes by a source's events. After `max_keys` keys of
  /// a part, events of its other keys are dropped.
  EventLists(const EventLog& log, eid_t first, const uint32_t* ranks, std::vector<Decay> decays,
             double seconds_per_tick, bool has_pairs, int64_t max_keys)
      : log_(log),
        first_(first),
        ranks_(ranks),
        decays_(std::move(decays)),
        seconds_per_tick_(seconds_per_tick),
        has_pairs_(has_pairs),
        max_keys_(max_keys),
        pool_(log.disk()) {
    if (first > 0) heads_.use_small_pages();  // of all nodes few have events within a horizon
  }

  /// Adds an event to the list of `key` of a part, below `kParts`, in the order of the log. Returns the
  /// number of events in the list before, -1 if the event was dropped.
  int64_t append(uint64_t key, int64_t part, eid_t eid);
  /// Drops the events before `first` from the lists of a share of the nodes, which take turns. Without
  /// decays: sums are of all events of a list.
  void sweep(eid_t first, double share);

  struct Block;
  /// The part of a list before a cut-off.
  struct Prefix {
    int64_t num = 0;
    eid_t last = kNoEvent;
    const Block* block = nullptr;  ///< Of `last`, unless it is the only event.
    int64_t index = 0;             ///< In the block.
  };
  // `find` and then `prefix` in steps, each of which prefetches what the next one reads. Inlined: GCC drops
  // calls that only prefetch.
  [[gnu::always_inline]] void prefetch(uint64_t key) const {
    if (has_head(key)) __builtin_prefetch(&heads_[node_of(key)]);
  }
  [[gnu::always_inline]] void prefetch_slot(uint64_t key) const {
    if (!has_pairs_ || !has_head(key)) return;
    const Head& head = heads_[node_of(key)];
    if (head.table != 0) __builtin_prefetch(slot(head, home(head, second_of(key))));
  }
  /// The place of the list of `key`, or kNone.
  uint32_t find(uint64_t key) const {
    if (!has_head(key)) return kNone;
    const Head head = heads_[node_of(key)];
    if (!has_pairs_ || head.table == 0) return head.table;
    const int64_t i = find_slot(head, second_of(key));
    return i < 0 ? kNone : read(head, i).place;
  }
  [[gnu::always_inline]] void prefetch_end(uint32_t place) const {
    if (!is_one(place)) __builtin_prefetch(block_at(place));
  }
  [[gnu::always_inline]] void prefetch_group(uint32_t place) const {
    if (is_one(place) || block_at(place)->number() == 0) return;
    __builtin_prefetch(entry(*block_at(place), last_group(*block_at(place)) * kGroup));
  }
  /// The events before `cut` in a list by its place.
  Prefix prefix(uint32_t place, eid_t cut) const;
  /// What the sums of a nonempty prefix follow from: those at an earlier event of it, and the events after.
  struct Tail {
    const double* known;  ///< Null at the first event of the list.
    eid_t before;         ///< That event,
    int64_t num;          ///< and up to `kMostTail` ones after it.
    const uint32_t* events;
  };
  static constexpr int64_t kMostTail = 8;
  Tail tail(const Prefix& prefix) const;
  /// Prefetches what `write_ages` reads of the log.
  void prefetch(const Tail& tail) const {
    for (int64_t i = 0; i < tail.num; ++i) __builtin_prefetch(log_.clocks() + first_ + tail.events[i]);
  }
  /// The number of events before `cut` of a key.
  int64_t num_before(uint64_t key, eid_t cut) const {
    const uint32_t place = find(key);
    return place == kNone ? 0 : prefix(place, cut).num;
  }
  /// The same of a key with events, remembered for the latest `since` of each list of one node.
  int64_t num_unseen(uint64_t key, eid_t since) const;
  /// Position of the first event of a key from the first one counted, or -1: a number of the list.
  int64_t number_of(uint64_t key) const;
  /// Writes up to `most` of the last events from `since` on and before `cut` of a key that `is_wanted`, of
  /// its last `reach` ones, the last one first; returns how many.
  template <typename IsWanted>
  int last_events_if(uint64_t key, eid_t since, eid_t cut, int64_t reach, int most, eid_t* out,
                     const IsWanted& is_wanted) const {
    const uint32_t place = find(key);
    if (place == kNone) return 0;
    const Prefix known = prefix(place, cut);
    int num = 0;
    const Block* block = known.block;
    int64_t index = known.index;
    for (int64_t left = std::min(known.num, reach); left > 0 && num < most; --left, --index) {
      if (index < 0) {
        block = block_at(block->before);
        index = block->num() - 1;
      }
      const eid_t eid = block == nullptr ? known.last : event(*block, index);
      if (eid < since) break;
      if (is_wanted(eid)) out[num++] = eid;
    }
    return num;
  }
  /// Writes up to `most` of the last such events of a key, the last one first; returns how many.
  int last_events(uint64_t key, eid_t since, eid_t cut, int most, eid_t* out) const {
    return last_events_if(key, since, cut, most, most, out, [](eid_t) { return true; });
  }
  /// Writes by how much each event of a tail is later than the one before it.
  void write_ages(const Tail& tail, Clock clock, double* out) const;
  /// The sum as of the last event of a tail, with `rest`, what is left after each age: `decay` of these.
  double sum(const Tail& tail, size_t decay, const double* rest) const;
  const Decay& decay(size_t number) const { return decays_[number]; }
  bool has_decays() const { return !decays_.empty(); }

  int64_t bytes() const { return pool_.bytes() + heads_.bytes(); }

  /// Events of a list in order: its first ones, or those after them in groups, which start with the sums
  /// before them.
  struct Block {
    uint32_t word;    ///< Events in it, and the number of blocks before it.
    uint32_t before;  ///< Unless it is the first: the place of the block before it,
    uint32_t first;   ///< the list's first event,
    uint32_t last;    ///< and the last one of the block before.

    int64_t num() const { return word >> 8; }
    uint32_t number() const { return word & 0xFF; }
  };

 private:
  static constexpr int64_t kFirst = 7;
  static constexpr int64_t kGroup = kMostTail;
  /// Number of events before the n-th block of a list, and its groups.
  struct Growth {
    static constexpr int kMostBlocks = 256;  // more than any list fills
    int64_t base[kMostBlocks];
    int64_t groups[kMostBlocks];

    static const Growth& of_lists();
  };
  /// Of a node: the table of its second nodes, or its list.
  struct Head {
    uint32_t table;       ///< Its place; or that of the list, with keys of one node.
    uint8_t size_class;   ///< Of the table.
    uint8_t key_bytes;    ///< Of a slot: the second node,
    uint8_t place_bytes;  ///< and the place of its list, kNone in an empty one.

    int64_t width() const { return key_bytes + place_bytes; }
    bool operator!=(const Head& other) const { return table != other.table; }
  };
  struct Slot {
    uint32_t second;
    uint32_t place;
  };

  // A place is twice an event plus one, or twice the place of a block in the pool.
  static bool is_one(uint32_t place) { return place % 2 == 1; }
  Block* block_at(uint32_t place) const { return pool_.at<Block>(place / 2); }
  int64_t node_of(uint64_t key) const { return static_cast<int64_t>(has_pairs_ ? key >> 32 : key); }
  static uint32_t second_of(uint64_t key) { return static_cast<uint32_t>(key); }
  bool has_head(uint64_t key) const { return node_of(key) < num_heads_; }

  static int64_t capacity(const Head& head) { return kTableSizes.slots[head.size_class][head.width()]; }
  /// Unaligned: a slot is read as the end of a word, whose beginning is in the table too.
  const std::byte* slot(const Head& head, int64_t i) const {
    return pool_.at<const std::byte>(head.table) + 4 + i * head.width();
  }
  Slot read(const Head& head, int64_t i) const {
    uint64_t word;
    std::memcpy(&word, slot(head, i) + head.width() - 8, sizeof word);
    word >>= 64 - 8 * head.width();
    const int bits = 8 * head.key_bytes;
    return {static_cast<uint32_t>(word & ((uint64_t{1} << bits) - 1)), static_cast<uint32_t>(word >> bits)};
  }
  void write(const Head& head, int64_t i, Slot value) {
    const uint64_t word = value.second | static_cast<uint64_t>(value.place) << 8 * head.key_bytes;
    std::memcpy(const_cast<std::byte*>(slot(head, i)), &word, static_cast<size_t>(head.width()));
  }
  static int64_t home(const Head& head, uint32_t second) {
    return static_cast<int64_t>((mix64(second) >> 32) * static_cast<uint64_t>(capacity(head)) >> 32);
  }
  /// The slot of a node, or the empty one where it belongs, or -1 in a full table.
  int64_t find_slot(Head head, uint32_t second) const {
    const int64_t slots = capacity(head);
    int64_t i = home(head, second);
    for (int64_t left = slots; left > 0; --left) {
      const Slot found = read(head, i);
      if (found.place == kNone || found.second == second) return i;
      if (++i == slots) i = 0;
    }
    return -1;
  }
  void rebuild(Head& head, Slot added);
  void set(Head& head, Slot slot);
  void set(uint64_t key, uint32_t place);
  uint32_t with(uint32_t place, uint32_t at);
  uint32_t trimmed(uint32_t place, uint32_t first);
  void trim(Head& head, uint32_t first);

  int64_t words_of(uint32_t number) const {  // of a block after the first
    return static_cast<int64_t>(sizeof(Block) / sizeof(uint64_t)) +
           Growth::of_lists().groups[number] * stride();
  }
  int64_t stride() const { return kGroup / 2 + static_cast<int64_t>(decays_.size()); }  // words of a group
  const uint32_t* entry(const Block& block, int64_t i) const {
    if (block.number() == 0) return reinterpret_cast<const uint32_t*>(&block) + 1 + i;
    return reinterpret_cast<const uint32_t*>(sums(block, i / kGroup) + decays_.size()) + i % kGroup;
  }
  uint32_t* entry(Block& block, int64_t i) const {
    return const_cast<uint32_t*>(entry(static_cast<const Block&>(block), i));
  }
  /// The last group of a block with events; all of the first one are in one.
  static int64_t last_group(const Block& block) {
    return block.number() == 0 ? 0 : (block.num() - 1) / kGroup;
  }
  eid_t event(const Block& block, int64_t i) const { return first_ + *entry(block, i); }
  const double* sums(const Block& block, int64_t group) const {
    return reinterpret_cast<const double*>(&block + 1) + group * stride();
  }
  uint32_t grown(uint32_t place);
  void write_sums(const Block& block, int64_t group, const Prefix& before);
  double age_at(Clock clock, eid_t earlier, eid_t eid) const;
  bool is_late(eid_t eid) const { return log_.t() != log_.clocks() && log_.t()[eid] != log_.clocks()[eid]; }
  double weight(const Decay& how, eid_t eid) const {
    if (how.clock != Clock::kSeconds || !is_late(eid)) return 1.0;
    return std::exp2(-seconds(log_.t()[eid], log_.clocks()[eid]) / how.half_life);
  }
  double seconds(tick_t earlier, tick_t later) const {
    return seconds_between(earlier, later, seconds_per_tick_);
  }

  const EventLog& log_;
  const eid_t first_;
  const uint32_t* const ranks_;
  const std::vector<Decay> decays_;
  const double seconds_per_tick_;
  const bool has_pairs_;
  SparseArray<Head> heads_{kMaxNode + 1};  ///< By node.
  int64_t num_heads_ = 0, next_swept_ = 0;
  int64_t num_known_ = 0;  ///< Of the nodes of `unseen_`.
  /// By node: an event, and the number of those before it in the list.
  mutable ReservedArray<uint64_t> unseen_{kMaxNode + 1};
  std::vector<uint32_t> left_;  ///< Of a list that is swept,
  std::vector<Slot> slots_;     ///< and of a table.
  WordPool pool_;
  std::array<int64_t, kParts> num_keys_{};  ///< Of each part.
  const int64_t max_keys_;
};

}  // namespace tgflow
