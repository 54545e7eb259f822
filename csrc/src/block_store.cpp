#include "tgflow/block_store.hpp"

#include <stdexcept>
#include <utility>

#include "tgflow/radix_sort.hpp"

namespace tgflow {

namespace {

constexpr size_t kAhead = 8;          // runs between the steps of a prefetched look-up
constexpr int64_t kEventsAhead = 32;  // entries
constexpr int64_t kEntriesInLine = 64 / sizeof(Entry);
constexpr size_t kKeptScratch = 64 << 10;  // pairs of scratch always kept between batches
constexpr uint8_t kSource = 1;
constexpr uint8_t kDestination = 2;

void fetch_for_write(const Entry* entries, int64_t size) {
  for (int64_t e = 0; e < std::min(size, 4 * kEntriesInLine); e += kEntriesInLine) {
    __builtin_prefetch(entries + e, 1);
  }
}

/// The place of the last block, if there is one.
const Block* last_block(const Directory& dir) {
  return dir.blocks() + (static_cast<int64_t>(dir.num_blocks) - 1);
}

}  // namespace

BlockStore::BlockStore(Direction direction, StoreMemory memory, Shard shard, eid_t first)
    : direction_(direction),
      shard_(shard),
      memory_(std::move(memory)),
      entries_(epochs_, *memory_.device, *memory_.host, memory_.device_budget),
      directories_(std::make_unique<Arena>(64, *memory_.directories, kDirectories)),
      heads_(kMaxNode + 1),
      relations_(memory_.disk),
      position_(first) {
  if (direction == Direction::kBipartite) sides_ = std::make_unique<ReservedArray<uint8_t>>(kMaxNode + 1);
}

BlockStore::~BlockStore() { epochs_.drain(); }

StoreView BlockStore::view() const {
  const int64_t change = changes_.load(std::memory_order_acquire);
  return {heads_.data(),     num_nodes_.load(std::memory_order_acquire),
          entries_.chunks(), entries_.tiers(),
          relations_.data(), change,
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
  relations_.reserve(events, first_eid);
  if (!sides_) return;
  node_t largest = -1;
  for (int64_t i = 0; i < events.size; ++i) largest = std::max({largest, events.src[i], events.dst[i]});
  sides_->grow(largest + 1);
  num_sides_ = std::max(num_sides_, largest + 1);
}

void BlockStore::note(const Events& events, eid_t first_eid) noexcept {
  relations_.commit(events, first_eid);
  note_sides(events);
}

void BlockStore::renew_sides(const Events& events) noexcept {
  if (sides_) sides_->clear(0, num_sides_);
  note_sides(events);
}

void BlockStore::note_sides(const Events& events) noexcept {
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

/// The batch's new entries by held node, each node's in event order.
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
    // The start of the run is kept in `in_tail` until the run is planned.
    plans.push_back({nullptr, static_cast<uint32_t>(end - begin), static_cast<uint32_t>(begin), 0, 0, 0, 0});
  }
  const StoreView store = view();
  for (size_t i = 0; i < plans.size(); ++i) {
    if (is_on_disk() && i % kReadAhead == 0) {
      read_ahead(i, plans.size(), -1, [&](size_t j) { return heads_[pairs[plans[j].in_tail].node]; });
    }
    look_up_ahead(i);
    const Pair* run = &pairs[plans[i].in_tail];
    const auto eids = [&](int64_t j) { return insertion_.first_eid + (run[j].row_and_side >> 1); };
    if (heads_[run->node] == nullptr) heads_.mark(run->node);
    plans[i] = plan_run(store, heads_[run->node], plans[i].size, entries_.max_capacity(), eids);
    reserve_for(plans[i]);
  }
  epochs_.expect(2 * plans.size());
}

/// Prefetches planning data of the runs after run `i`, one step of their look-ups at a time.
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

/// Keeps the scratch for the next batch, but not that of a large one after a batch an eighth its size.
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
    if (is_on_disk() && i % kReadAhead == 0) {
      read_ahead(i, plans.size(), kOneBlock, [&](size_t j) { return plans[j].dir; });
    }
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

/// Prefetches the targets of the runs after run `i`; `places` begins with run `i`'s.
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

/// Prefetches the events of the pairs from `pair` on.
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

/// Retires the only block of `dir`, which is replaced by a larger copy.
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
  const int64_t heads = heads_.bytes() + num_sides_;
  StoreStats stats;
  stats.num_entries = num_entries_;
  stats.max_blocks = max_blocks_;
  stats.bytes =
      directories_->bytes() + heads + relations_.bytes() + entries_.index_bytes() + insertion_.bytes();
  for (const int tier : {0, 1}) {
    stats.tiers[tier] = entries_.stats(tier);
    stats.bytes += stats.tiers[tier].bytes;
    stats.reads[tier] = load_acquire(&reads_[tier]);
  }
  return stats;
}

/// Plans the changes that `gather` lists in `alteration_.plans`, by node.
template <typename Gather>
int64_t BlockStore::reserve_alteration(const Gather& gather) {
  std::vector<ChangePlan>& plans = alteration_.plans;
  try {
    gather();
    if (!plans.empty()) heads_.grow(std::max(num_nodes_.load(), plans.back().node + 1));
    for (ChangePlan& plan : plans) plan_change(plan);
  } catch (...) {
    abandon_change();
    throw;
  }
  return alteration_.difference;
}

int64_t BlockStore::reserve_edits(std::vector<NodeEdit> edits, bool puts_in) {
  for (NodeEdit& item : edits) item.node = shard_.local(item.node);
  edits.erase(
      std::remove_if(edits.begin(), edits.end(), [](const NodeEdit& item) { return item.node == kNotHeld; }),
      edits.end());
  std::sort(edits.begin(), edits.end(), [](const NodeEdit& a, const NodeEdit& b) {
    return a.node != b.node ? a.node < b.node : comes_before(a.edit.t, a.edit.eid, b.edit.t, b.edit.eid);
  });
  return reserve_alteration([&] {
    alteration_.edits.reserve(edits.size());
    for (const NodeEdit& item : edits) alteration_.edits.push_back(item.edit);
    for (size_t begin = 0, end = 0; begin < edits.size(); begin = end) {
      while (end < edits.size() && edits[end].node == edits[begin].node) ++end;
      const Change change{alteration_.edits.data() + begin, static_cast<int64_t>(end - begin), puts_in,
                          INT64_MIN, INT64_MAX};
      alteration_.plans.push_back({edits[begin].node, change, 0, 0, nullptr, nullptr});
    }
  });
}

int64_t BlockStore::reserve_retention(tick_t min_t, int64_t max_count) {
  return reserve_alteration([&] {
    const StoreView store = view();
    const Change change{nullptr, 0, false, min_t, max_count};
    heads_.for_each([&](node_t v) {
      const Directory* dir = heads_[v];
      if (dir->num_blocks == 0 || num_forgotten(store, dir, change) <= 0) return;
      alteration_.plans.push_back({v, change, 0, 0, nullptr, nullptr});
    });
  });
}

void BlockStore::plan_change(ChangePlan& plan) {
  std::vector<NewBlock>& blocks = alteration_.blocks;
  plan.first_block = blocks.size();
  const auto made = [&](const NewBlock& block) { blocks.push_back(block); };
  const Directory* dir = heads_[plan.node];
  if (dir == nullptr) heads_.mark(plan.node);
  ChangePlanner planner(entries_.max_capacity(), made);
  change_node(view(), dir, plan.change, planner);
  planner.close();
  const int64_t difference = planner.total - (dir == nullptr ? 0 : dir->total);
  if (difference == 0) {  // none of the entries was present
    blocks.resize(plan.first_block);
    return;
  }
  reserve_blocks(plan, !planner.ends_shared, planner.total);
  const auto max_blocks = directory_room(planner.num_blocks);
  plan.version = static_cast<Version*>(directories_->allocate(sizeof(Version)));
  *plan.version = {0, changes_.load() + 1, dir,
                   dir == nullptr || dir->version == nullptr ? 0 : dir->version->merged_at};
  plan.room =
      static_cast<Directory*>(directories_->allocate(static_cast<size_t>(directory_bytes(max_blocks))));
  *plan.room = {0, 0, max_blocks, plan.version, 0};
  alteration_.difference += difference;
}

/// Blocks within the node do not change: they get no more room than they need.
void BlockStore::reserve_blocks(ChangePlan& plan, bool ends_new, int64_t total) {
  const std::vector<NewBlock>& blocks = alteration_.blocks;
  if (alteration_.places.capacity() < blocks.size()) alteration_.places.reserve(2 * blocks.size());
  for (size_t b = plan.first_block; b < blocks.size(); ++b) {
    const bool tail = ends_new && b + 1 == blocks.size();
    const int64_t size = blocks[b].size;
    alteration_.places.push_back(
        entries_.allocate(tail ? tail_capacity(size, total, entries_.max_capacity()) : size));
    ++plan.num_new;
  }
}

void BlockStore::abandon_change() noexcept {
  for (const place_t place : alteration_.places) entries_.free(place, 0);
  for (const ChangePlan& plan : alteration_.plans) {
    if (plan.version != nullptr) directories_->free(plan.version, sizeof(Version));
    if (plan.room != nullptr) {
      directories_->free(plan.room, static_cast<size_t>(directory_bytes(plan.room->max_blocks)));
    }
  }
  alteration_ = {};
}

void BlockStore::commit_change(eid_t position) noexcept {
  const StoreView store = view();
  for (ChangePlan& plan : alteration_.plans) {
    if (plan.room == nullptr) continue;
    const size_t first = plan.first_block;
    plan.version->changed_at = position;
    if (plan.change.puts_in) plan.version->merged_at = position;
    ChangeWriter writer(store, plan.room, alteration_.blocks.data() + first,
                        alteration_.places.data() + first);
    change_node(store, heads_[plan.node], plan.change, writer);
    for (size_t b = first; b < first + plan.num_new; ++b) {
      entries_.add_entries(alteration_.places[b], alteration_.blocks[b].size);
    }
    store_release(&heads_[plan.node], plan.room);
    max_blocks_ = std::max<int64_t>(max_blocks_, plan.room->num_blocks);
    if (plan.node >= num_nodes_.load(std::memory_order_relaxed)) {
      num_nodes_.store(plan.node + 1, std::memory_order_release);
    }
  }
  num_entries_ += alteration_.difference;
  changes_.fetch_add(1, std::memory_order_release);
  position_.store(position, std::memory_order_release);
  alteration_ = {};
}

void BlockStore::compact() {
  // A reader that started before the last change still reads the past that it replaced.
  epochs_.wait_for_readers();
  heads_.for_each([&](node_t v) { give_up_past(v); });
  heads_.free_zeros();
  epochs_.drain();
  entries_.close_chunks();
  heads_.for_each([&](node_t v) { leave_sparse_chunks(v); });
  renew_directories();
  max_blocks_ = 0;
  heads_.for_each([&](node_t v) { max_blocks_ = std::max<int64_t>(max_blocks_, heads_[v]->num_blocks); });
  epochs_.drain();
  entries_.forget_stale_pieces();
}

void BlockStore::give_up_past(node_t v) {
  const Directory* dir = heads_[v];
  if (dir->version == nullptr) return;
  if (dir->version->older == nullptr && dir->total != 0) return;  // discarded before
  const std::vector<Epochs::Piece> past = past_of(dir);
  epochs_.expect(past.size());
  store_release(&heads_[v], dir->total == 0 ? nullptr : without_past(*dir));
  for (const Epochs::Piece& piece : past) epochs_.retire(piece);
}

/// A copy of `dir` without an older version. Where late events were merged, its entries are not in the
/// order of their events: an earlier cut-off sees nothing of them.
Directory* BlockStore::without_past(const Directory& dir) {
  const auto bytes = static_cast<size_t>(directory_bytes(dir.max_blocks));
  auto* kept = static_cast<Directory*>(directories_->allocate(bytes));
  *kept = {dir.total, dir.num_blocks, dir.max_blocks, nullptr, 0};
  std::copy(dir.blocks(), dir.blocks() + dir.num_blocks, kept->blocks());
  const eid_t merged_at = dir.version->merged_at;
  if (merged_at == 0) return kept;
  try {
    auto* version = static_cast<Version*>(directories_->allocate(sizeof(Version)));
    *version = {merged_at, 0, nullptr, merged_at};
    kept->version = version;
  } catch (...) {
    directories_->free(kept, bytes);
    throw;
  }
  return kept;
}

/// All pieces of `dir` and its older versions, except the blocks of `dir`.
std::vector<Epochs::Piece> BlockStore::past_of(const Directory* dir) {
  std::vector<Epochs::Piece> past;
  while (dir != nullptr) {
    const Version* version = dir->version;
    past.push_back({directories_.get(), reinterpret_cast<uint64_t>(dir),
                    static_cast<uint64_t>(directory_bytes(dir->max_blocks))});
    if (version == nullptr) break;
    past.push_back({directories_.get(), reinterpret_cast<uint64_t>(version), sizeof(Version)});
    if (version->older != nullptr) add_unshared(*version->older, *dir, past);
    dir = version->older;
  }
  return past;
}

/// Adds the blocks of `older` that are not shared by `newer`, the version after it.
void BlockStore::add_unshared(const Directory& older, const Directory& newer,
                              std::vector<Epochs::Piece>& past) {
  std::vector<place_t> shared;
  for (uint32_t b = 0; b < newer.num_blocks; ++b) shared.push_back(newer.blocks()[b].place);
  std::sort(shared.begin(), shared.end());
  for (uint32_t b = 0; b < older.num_blocks; ++b) {
    const place_t place = older.blocks()[b].place;
    if (std::binary_search(shared.begin(), shared.end(), place)) continue;
    past.push_back({&entries_, place, static_cast<uint64_t>(size_of_block(older, b))});
  }
}

/// Moves the blocks of `v` that lie in sparse chunks to denser ones of their tier.
void BlockStore::leave_sparse_chunks(node_t v) {
  Directory* dir = heads_[v];
  for (uint32_t b = 0; b < dir->num_blocks; ++b) {
    Block& block = dir->blocks()[b];
    const place_t place = block.place;
    if (!entries_.is_sparse(place)) continue;
    const bool tail = b + 1 == dir->num_blocks;
    const int64_t size = size_of_block(*dir, b);
    const place_t to = entries_.allocate(tail ? capacity_of(place) : size, entries_.tier(place));
    try {
      epochs_.expect(1);  // after allocating, which may have begun a new epoch
    } catch (...) {
      entries_.free(to, 0);
      throw;
    }
    std::copy_n(entries_.entries(place), size, entries_.entries(to));
    entries_.add_entries(to, size);
    store_release(&block.place, to);
    epochs_.retire(entries_, place, static_cast<uint64_t>(size));
  }
}

/// Copies all directories to compact memory, if more than a quarter of theirs is unused.
void BlockStore::renew_directories() {
  if (4 * directories_->bytes_in_use() > 3 * directories_->bytes()) return;
  auto renewed = std::make_unique<Arena>(64, *memory_.directories, kDirectories);
  std::vector<std::pair<node_t, Directory*>> copies;
  heads_.for_each([&](node_t v) {
    const Directory* dir = heads_[v];
    const auto max_blocks = directory_room(dir->num_blocks);
    auto* copy = static_cast<Directory*>(renewed->allocate(static_cast<size_t>(directory_bytes(max_blocks))));
    *copy = {dir->total, dir->num_blocks, max_blocks, nullptr, 0};
    std::copy(dir->blocks(), dir->blocks() + dir->num_blocks, copy->blocks());
    if (dir->version != nullptr) {
      auto* version = static_cast<Version*>(renewed->allocate(sizeof(Version)));
      *version = *dir->version;
      copy->version = version;
    }
    copies.emplace_back(v, copy);
  });
  epochs_.expect(1);
  for (const auto& [v, copy] : copies) store_release(&heads_[v], copy);
  epochs_.retire(old_arenas_, reinterpret_cast<uint64_t>(directories_.release()), 0);
  directories_ = std::move(renewed);
}

}  // namespace tgflow
