#include "tgflow/block_store.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "tgflow/radix_sort.hpp"

namespace tgflow {
namespace {

constexpr size_t kAhead = 8;          // runs between the steps of a look-up made ahead
constexpr int64_t kEventsAhead = 32;  // entries
constexpr int64_t kEntriesInLine = 64 / sizeof(Entry);
constexpr size_t kKeptScratch = 64 << 10;  // pairs for which room is always kept between batches
constexpr uint8_t kSource = 1;
constexpr uint8_t kDestination = 2;

void fetch_for_write(const Entry* entries, int64_t size) {
  for (int64_t e = 0; e < std::min(size, 4 * kEntriesInLine); e += kEntriesInLine) {
    __builtin_prefetch(entries + e, 1);
  }
}

/// Where the last block is, if there is one.
const Block* last_block(const Directory& dir) {
  return dir.blocks() + (static_cast<int64_t>(dir.num_blocks) - 1);
}

bool holds(const Directory* dir, place_t place) {
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    if (dir->blocks()[b].place == place) return true;
  }
  return false;
}

}  // namespace

BlockStore::BlockStore(Direction direction, StoreMemory memory, Shard shard)
    : direction_(direction),
      shard_(shard),
      memory_(std::move(memory)),
      entries_(epochs_, *memory_.device, *memory_.host, memory_.device_budget),
      directories_(std::make_unique<Arena>(64, *memory_.directories, kDirectories)),
      heads_(kMaxNode + 1) {
  if (direction == Direction::kBipartite) sides_ = std::make_unique<ReservedArray<uint8_t>>(kMaxNode + 1);
}

BlockStore::~BlockStore() { epochs_.drain(); }

StoreView BlockStore::view() const {
  const int64_t change = changes_.load(std::memory_order_acquire);
  return {heads_.data(),     num_nodes_.load(std::memory_order_acquire),
          entries_.chunks(), entries_.tiers(),
          types_.data(),     change,
          nullptr,           shard_};
}

void BlockStore::try_sides(const Events& events, std::vector<uint8_t*>& marked) {
  const auto mark = [&](int64_t row, node_t v, uint8_t side) {
    uint8_t& known = (*sides_)[v];
    if (known == 0) {
      known = side;
      marked.push_back(&known);
    } else if (known != side) {
      const char* now = side == kSource ? "the source" : "the destination";
      const char* before = side == kSource ? "a destination" : "a source";
      throw std::invalid_argument("node " + std::to_string(v) + " is " + now + " of event " +
                                  std::to_string(row) + " but was " + before +
                                  " before; a bipartite graph needs separate ids for the two sides");
    }
  };
  for (int64_t i = 0; i < events.size; ++i) {
    mark(i, events.src[i], kSource);
    mark(i, events.dst[i], kDestination);
  }
}

void BlockStore::reserve_notes(const Events& events, eid_t first_eid) {
  types_.reserve(events, first_eid);
  if (!sides_) return;
  node_t largest = -1;
  for (int64_t i = 0; i < events.size; ++i) largest = std::max({largest, events.src[i], events.dst[i]});
  sides_->grow(largest + 1);
  num_sides_ = std::max(num_sides_, largest + 1);
}

void BlockStore::note(const Events& events, eid_t first_eid) noexcept {
  types_.commit(events, first_eid);
  if (!sides_) return;
  for (int64_t i = 0; i < events.size; ++i) {
    (*sides_)[events.src[i]] = kSource;
    (*sides_)[events.dst[i]] = kDestination;
  }
}

void BlockStore::check(const Events& events) {
  if (!sides_) return;
  reserve_notes(events, position());
  std::vector<uint8_t*> marked;
  const auto unmark = [&] {
    for (uint8_t* side : marked) *side = 0;
  };
  try {
    try_sides(events, marked);
  } catch (...) {
    unmark();
    throw;
  }
  unmark();
}

/// The batch's entries to be, by node that is held, each node's in the events' order.
void BlockStore::sort_pairs(const Events& events) {
  std::vector<Pair>& pairs = insertion_.pairs;
  const bool both = direction_ != Direction::kDirected;
  pairs.resize(static_cast<size_t>(events.size) * (both ? 2 : 1));
  Pair* pair = pairs.data();
  const auto add = [&](node_t v, uint32_t row_and_side) {
    const int64_t node = shard_.local(v);
    if (node != kNotHeld) *pair++ = {static_cast<uint32_t>(node), row_and_side};
  };
  for (int64_t i = 0; i < events.size; ++i) {
    const uint32_t row = static_cast<uint32_t>(i) << 1;
    add(events.src[i], row);
    if (both && events.src[i] != events.dst[i]) add(events.dst[i], row | 1);
  }
  pairs.resize(static_cast<size_t>(pair - pairs.data()));
  radix_sort(pairs, insertion_.scratch, [](const Pair& p) { return p.node; });
}

void BlockStore::reserve(const Events& events, eid_t first_eid) {
  if (events.size > int64_t{1} << 31) throw std::length_error("a batch holds at most 2^31 events");
  insertion_.events = events;
  insertion_.first_eid = first_eid;
  try {
    reserve_notes(events, first_eid);
    sort_pairs(events);
    plan_all();
  } catch (...) {
    abandon();
    throw;
  }
}

void BlockStore::plan_all() {
  const std::vector<Pair>& pairs = insertion_.pairs;
  if (pairs.empty()) return;
  const int64_t num_nodes =
      std::max(num_nodes_.load(std::memory_order_relaxed), static_cast<int64_t>(pairs.back().node) + 1);
  heads_.grow(num_nodes);
  std::vector<RunPlan>& plans = insertion_.plans;
  for (size_t begin = 0, end = 0; begin < pairs.size(); begin = end) {
    while (end < pairs.size() && pairs[end].node == pairs[begin].node) ++end;
    // Where the run begins waits in `in_tail` for the run to be planned.
    plans.push_back({nullptr, static_cast<uint32_t>(end - begin), static_cast<uint32_t>(begin), 0, 0, 0, 0});
  }
  const StoreView store = view();
  for (size_t i = 0; i < plans.size(); ++i) {
    look_up_ahead(i);
    const Pair* run = &pairs[plans[i].in_tail];
    const auto eids = [&](int64_t j) { return insertion_.first_eid + (run[j].row_and_side >> 1); };
    plans[i] = plan_run(store, heads_[run->node], plans[i].size, entries_.max_capacity(), eids);
    reserve_for(plans[i]);
  }
  epochs_.expect(2 * plans.size());
}

/// Fetches what the runs after run `i` will need to be planned, one step of their look-ups at a time.
void BlockStore::look_up_ahead(size_t i) const {
  const std::vector<RunPlan>& plans = insertion_.plans;
  if (i + 3 * kAhead >= plans.size()) return;
  const auto head = [&](size_t run) { return &heads_[insertion_.pairs[plans[run].in_tail].node]; };
  __builtin_prefetch(head(i + 3 * kAhead));
  __builtin_prefetch(*head(i + 2 * kAhead));
  const Directory* dir = *head(i + kAhead);
  if (dir != nullptr) __builtin_prefetch(last_block(*dir));
}

void BlockStore::reserve_for(const RunPlan& plan) {
  std::vector<place_t>& places = insertion_.places;
  for (uint32_t b = 0; b < plan.num_blocks; ++b) {
    if (places.size() == places.capacity()) places.reserve(std::max<size_t>(256, 2 * places.size()));
    places.push_back(entries_.allocate(capacity_of_new(plan, b, entries_.max_capacity())));
  }
  if (plan.max_blocks == 0) return;
  std::vector<Directory*>& rooms = insertion_.rooms;
  if (rooms.size() == rooms.capacity()) rooms.reserve(std::max<size_t>(256, 2 * rooms.size()));
  const auto bytes = static_cast<size_t>(directory_bytes(plan.max_blocks));
  auto* room = static_cast<Directory*>(directories_->allocate(bytes));
  room->max_blocks = plan.max_blocks;
  rooms.push_back(room);
}

void BlockStore::abandon() noexcept {
  for (const place_t place : insertion_.places) entries_.free(place, 0);
  for (Directory* room : insertion_.rooms) {
    directories_->free(room, static_cast<size_t>(directory_bytes(room->max_blocks)));
  }
  forget_insertion();
}

/// Keeps the working space for the next batch, but not that of a large one past a batch an eighth its size.
void BlockStore::forget_insertion() noexcept {
  const size_t room = insertion_.pairs.capacity();
  if (room > kKeptScratch && 8 * insertion_.pairs.size() < room) {
    insertion_ = {};
    return;
  }
  insertion_.plans.clear();
  insertion_.places.clear();
  insertion_.rooms.clear();
}

int64_t BlockStore::Insertion::bytes() const {
  return static_cast<int64_t>((pairs.capacity() + scratch.capacity()) * sizeof(Pair) +
                              plans.capacity() * sizeof(RunPlan) + places.capacity() * sizeof(place_t) +
                              rooms.capacity() * sizeof(Directory*));
}

void BlockStore::commit() noexcept {
  const std::vector<Pair>& pairs = insertion_.pairs;
  const std::vector<RunPlan>& plans = insertion_.plans;
  const place_t* places = insertion_.places.data();
  const place_t* places_ahead = places;
  for (size_t i = 0; i < std::min(kAhead, plans.size()); ++i) places_ahead += plans[i].num_blocks;
  Directory* const* rooms = insertion_.rooms.data();
  const Pair* run = pairs.data();
  const StoreView store = view();
  note(insertion_.events, insertion_.first_eid);
  for (size_t i = 0; i < plans.size(); ++i) {
    fetch_ahead(i, places_ahead);
    fetch_events(run + kEventsAhead, plans[i].size);
    commit_run(store, plans[i], run, places, rooms);
    run += plans[i].size;
  }
  if (!pairs.empty()) {
    const int64_t num_nodes = static_cast<int64_t>(pairs.back().node) + 1;
    if (num_nodes > num_nodes_.load(std::memory_order_relaxed)) {
      num_nodes_.store(num_nodes, std::memory_order_release);
    }
  }
  num_entries_ += static_cast<int64_t>(pairs.size());
  position_.store(insertion_.first_eid + insertion_.events.size, std::memory_order_release);
  forget_insertion();
  epochs_.drain();
}

/// Fetches what the runs after run `i` will write to; `places` begins with run `i`'s.
void BlockStore::fetch_ahead(size_t i, const place_t*& places) const {
  const std::vector<RunPlan>& plans = insertion_.plans;
  if (i + 3 * kAhead >= plans.size()) return;
  __builtin_prefetch(plans[i + 3 * kAhead].dir, 1);
  const Directory* dir = plans[i + 2 * kAhead].dir;
  if (dir != nullptr) __builtin_prefetch(last_block(*dir), 1);
  const RunPlan& next = plans[i + kAhead];
  if (next.num_blocks != 0) fetch_for_write(entries_.entries(*places), next.size);
  places += next.num_blocks;
  if (next.dir == nullptr || next.dir->num_blocks == 0) return;
  const Block& tail = next.dir->blocks()[next.dir->num_blocks - 1];
  const int64_t in_block = next.dir->total - tail.start;
  const Entry* entries = entries_.entries(tail.place);
  if (next.regrows != 0) {
    for (int64_t e = 0; e < in_block; e += kEntriesInLine) __builtin_prefetch(entries + e);
  } else {
    fetch_for_write(entries + in_block, next.in_tail);
  }
}

/// Fetches the events of the pairs from `pair` on.
void BlockStore::fetch_events(const Pair* pair, int64_t size) const {
  const Pair* end = std::min(pair + size, insertion_.pairs.data() + insertion_.pairs.size());
  const Events& events = insertion_.events;
  for (; pair < end; ++pair) {
    const int64_t row = pair->row_and_side >> 1;
    __builtin_prefetch(events.t + row);
    __builtin_prefetch(((pair->row_and_side & 1) != 0 ? events.src : events.dst) + row);
  }
}

void BlockStore::commit_run(const StoreView& store, const RunPlan& plan, const Pair* run,
                            const place_t*& places, Directory* const*& rooms) noexcept {
  const int64_t max_capacity = entries_.max_capacity();
  const Events& events = insertion_.events;
  const auto mark = [&](int64_t j) {
    const int64_t row = run[j].row_and_side >> 1;
    return Mark{insertion_.first_eid + row, events.t[row]};
  };
  if (plan.regrows != 0) leave_block(*plan.dir);
  Directory* dir = link_run(store, plan, plan.max_blocks != 0 ? *rooms : nullptr, places, max_capacity, mark);
  for (uint32_t s = 0; s < num_segments(plan); ++s) {
    const Segment segment = segment_of(store, plan, dir, s, max_capacity);
    for (int64_t j = 0; j < segment.size; ++j) {
      segment.entries[j] = entry_of(run[segment.begin + j], segment.base_eid);
    }
    const int64_t copied = plan.regrows != 0 ? plan.dir->total : 0;
    if (segment.size != 0) entries_.add_entries(segment.place, copied + segment.size);
  }
  publish_run(plan, dir, &heads_[run->node]);
  if (dir != plan.dir && plan.dir != nullptr) retire_directory(plan.dir);
  max_blocks_ = std::max<int64_t>(max_blocks_, dir->num_blocks);
  places += plan.num_blocks;
  rooms += plan.max_blocks != 0;
}

void BlockStore::retire_directory(const Directory* dir) {
  epochs_.retire(*directories_, reinterpret_cast<uint64_t>(dir),
                 static_cast<uint64_t>(directory_bytes(dir->max_blocks)));
}

/// Retires the only block of `dir`, of which a larger copy is about to take the place.
void BlockStore::leave_block(const Directory& dir) noexcept {
  const place_t place = dir.blocks()[0].place;
  if (dir.version != nullptr && holds(dir.version->older, place)) return;  // read through an older version
  epochs_.retire(entries_, place, static_cast<uint64_t>(dir.total));
}

inline Entry BlockStore::entry_of(const Pair& pair, eid_t base_eid) const {
  const Events& events = insertion_.events;
  const int64_t row = pair.row_and_side >> 1;
  const node_t nbr = (pair.row_and_side & 1) != 0 ? events.src[row] : events.dst[row];
  return {events.t[row], static_cast<uint32_t>(nbr),
          static_cast<uint32_t>(insertion_.first_eid + row - base_eid)};
}

void BlockStore::add_reads(const int64_t (&reads)[2]) {
  for (const int tier : {0, 1}) add_relaxed(&reads_[tier], reads[tier]);
}

StoreStats BlockStore::stats() {
  const int64_t heads = num_nodes_.load() * static_cast<int64_t>(sizeof(Directory*)) + num_sides_;
  StoreStats stats;
  stats.num_entries = num_entries_;
  stats.max_blocks = max_blocks_;
  stats.bytes = directories_->bytes() + heads + types_.bytes() + entries_.index_bytes() + insertion_.bytes();
  for (const int tier : {0, 1}) {
    stats.tiers[tier] = entries_.stats(tier);
    stats.bytes += stats.tiers[tier].bytes;
    stats.reads[tier] = load_acquire(&reads_[tier]);
  }
  return stats;
}

}  // namespace tgflow
