#include "tgflow/block_store.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tgflow/radix_sort.hpp"

namespace tgflow {
namespace {

constexpr int64_t kOneBlock = 36;    // up to here a node has one block, which grows by being copied
constexpr int64_t kMinChained = 16;  // capacities of the blocks that follow
constexpr int64_t kMaxChained = 16384;
constexpr int64_t kGrowth = 8;  // a new block holds this fraction of what the node has
constexpr int64_t kMaxOffset = 0xffffffff;
constexpr size_t kAhead = 8;  // runs between the steps of a look-up made ahead
constexpr uint8_t kSource = 1;
constexpr uint8_t kDestination = 2;

/// The smallest capacity of a growing block for `num_entries`: steps of about a third keep the slack small.
int64_t capacity_class(int64_t num_entries) {
  int64_t capacity = 1;
  while (capacity < num_entries) capacity += std::max<int64_t>(1, capacity / 3);
  return capacity;
}

size_t directory_bytes(int64_t max_blocks) {
  return sizeof(Directory) + static_cast<size_t>(max_blocks) * sizeof(Block);
}

size_t block_bytes(int64_t capacity) { return static_cast<size_t>(capacity) * sizeof(Entry); }

}  // namespace

BlockStore::BlockStore(Direction direction) : direction_(direction), heads_(kMaxNode + 1) {
  if (direction == Direction::kBipartite) sides_ = std::make_unique<ReservedArray<uint8_t>>(kMaxNode + 1);
}

StoreView BlockStore::view() const { return {heads_.data(), num_nodes_.load(std::memory_order_acquire)}; }

void BlockStore::mark_sides(const Events& events, std::vector<uint8_t*>& marked) {
  node_t largest = -1;
  for (int64_t i = 0; i < events.size; ++i) largest = std::max({largest, events.src[i], events.dst[i]});
  sides_->grow(largest + 1);
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

void BlockStore::check(const Events& events) {
  if (direction_ != Direction::kBipartite) return;
  std::vector<uint8_t*> marked;
  const auto unmark = [&] {
    for (uint8_t* side : marked) *side = 0;
  };
  try {
    mark_sides(events, marked);
  } catch (...) {
    unmark();
    throw;
  }
  unmark();
}

std::vector<BlockStore::Pair> BlockStore::sorted_pairs(const Events& events) const {
  std::vector<Pair> pairs;
  const bool both = direction_ != Direction::kDirected;
  pairs.reserve(static_cast<size_t>(events.size) * (both ? 2 : 1));
  for (int64_t i = 0; i < events.size; ++i) {
    const uint32_t row = static_cast<uint32_t>(i) << 1;
    pairs.push_back({static_cast<uint32_t>(events.src[i]), row});
    if (both && events.src[i] != events.dst[i])
      pairs.push_back({static_cast<uint32_t>(events.dst[i]), row | 1});
  }
  radix_sort(pairs, [](const Pair& pair) { return pair.node; });
  return pairs;
}

void BlockStore::insert(const Events& events, eid_t first_eid) {
  if (events.size == 0) return;
  if (events.size > int64_t{1} << 31) throw std::length_error("a batch holds at most 2^31 events");
  if (sides_) {
    std::vector<uint8_t*> marked;
    mark_sides(events, marked);
  }
  const std::vector<Pair> pairs = sorted_pairs(events);
  int64_t num_nodes = num_nodes_.load(std::memory_order_relaxed);
  num_nodes = std::max(num_nodes, static_cast<int64_t>(pairs.back().node) + 1);
  heads_.grow(num_nodes);
  std::vector<const Pair*> runs;  // of pairs of one node, and the end
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i == 0 || pairs[i].node != pairs[i - 1].node) runs.push_back(&pairs[i]);
  }
  const size_t num_runs = runs.size();
  runs.push_back(pairs.data() + pairs.size());
  for (size_t i = 0; i < num_runs; ++i) {
    if (i + 3 * kAhead < num_runs) prefetch_ahead(&runs[i]);
    append_run(runs[i], runs[i + 1] - runs[i], events, first_eid);
  }
  num_nodes_.store(num_nodes, std::memory_order_release);
  position_.store(first_eid + events.size, std::memory_order_release);
  epochs_.collect();
}

void BlockStore::prefetch_ahead(const Pair* const* runs) const {
  __builtin_prefetch(&heads_[runs[3 * kAhead]->node]);
  __builtin_prefetch(heads_[runs[2 * kAhead]->node]);
  const Directory* dir = heads_[runs[kAhead]->node];
  if (dir == nullptr) return;
  const Block& tail = dir->blocks()[dir->num_blocks - 1];
  __builtin_prefetch(tail.entries + (dir->total - tail.start), 1);
  __builtin_prefetch(tail.entries);  // a small block may have to be copied
}

void BlockStore::append_run(const Pair* run, int64_t size, const Events& events, eid_t first_eid) {
  const node_t v = run->node;
  Directory* dir = heads_[v];
  if (dir != nullptr && dir->num_blocks == 1 && dir->total + size > dir->tail_capacity &&
      dir->total + size <= kOneBlock) {
    grow_only_block(*dir, dir->total + size);
  }
  while (size > 0) {
    const int64_t written = dir == nullptr ? 0 : fill_tail(*dir, run, size, events, first_eid);
    run += written;
    size -= written;
    if (size == 0) return;
    const int64_t row = run->row_and_side >> 1;
    dir = &with_new_block(v, dir, size, first_eid + row, events.t[row]);
  }
}

int64_t BlockStore::fill_tail(Directory& dir, const Pair* run, int64_t size, const Events& events,
                              eid_t first_eid) {
  const Block& tail = dir.blocks()[dir.num_blocks - 1];
  const int64_t room = std::min(size, tail.start + dir.tail_capacity - dir.total);
  Entry* entry = tail.entries + (dir.total - tail.start);
  int64_t written = 0;
  for (; written < room; ++written) {
    const int64_t row = run[written].row_and_side >> 1;
    const int64_t offset = first_eid + row - tail.base_eid;
    if (offset > kMaxOffset) {
      stats_.capacity -= tail.start + dir.tail_capacity - (dir.total + written);
      dir.tail_capacity =
          dir.total + written - tail.start;  // the block is full: the next one has its own base
      break;
    }
    const node_t nbr = (run[written].row_and_side & 1) != 0 ? events.src[row] : events.dst[row];
    entry[written] = {events.t[row], static_cast<uint32_t>(nbr), static_cast<uint32_t>(offset)};
  }
  store_release(&dir.total, dir.total + written);
  stats_.num_entries += written;
  return written;
}

void BlockStore::grow_only_block(Directory& dir, int64_t num_entries) {
  Block& block = dir.blocks()[0];
  const int64_t capacity = capacity_class(num_entries);
  auto* entries = static_cast<Entry*>(entries_.allocate(block_bytes(capacity)));
  std::memcpy(entries, block.entries, block_bytes(dir.total));
  epochs_.retire(entries_, block.entries, block_bytes(dir.tail_capacity));
  store_release(&block.entries, entries);
  stats_.capacity += capacity - dir.tail_capacity;
  dir.tail_capacity = capacity;
}

Directory& BlockStore::with_new_block(node_t v, Directory* old, int64_t num_entries, eid_t base_eid,
                                      tick_t first_t) {
  const int64_t total = old == nullptr ? 0 : old->total;
  const int64_t capacity = total + num_entries <= kOneBlock
                               ? capacity_class(num_entries)
                               : std::max(num_entries, std::clamp(total / kGrowth, kMinChained, kMaxChained));
  auto* entries = static_cast<Entry*>(entries_.allocate(block_bytes(capacity)));
  Directory& dir = with_room(old);
  dir.blocks()[dir.num_blocks] = {entries, base_eid, first_t, total};
  dir.tail_capacity = capacity;
  store_release(&dir.num_blocks, dir.num_blocks + 1);
  if (&dir != old) store_release(&heads_[v], &dir);
  stats_.capacity += capacity;
  stats_.num_blocks += 1;
  stats_.max_blocks = std::max<int64_t>(stats_.max_blocks, dir.num_blocks);
  return dir;
}

Directory& BlockStore::with_room(Directory* old) {
  if (old != nullptr && old->num_blocks < old->max_blocks) return *old;
  const int64_t max_blocks =
      old == nullptr ? 1 : 2 * int64_t{old->max_blocks} + 1;  // a power of two with its header
  auto* dir = static_cast<Directory*>(directories_.allocate(directory_bytes(max_blocks)));
  if (old == nullptr) {
    *dir = {0, 0, 0, 0, 0};
  } else {
    std::memcpy(dir, old, directory_bytes(old->num_blocks));
    epochs_.retire(directories_, old, directory_bytes(old->max_blocks));
  }
  dir->max_blocks = static_cast<uint32_t>(max_blocks);
  return *dir;
}

StoreStats BlockStore::stats() {
  StoreStats stats = stats_;
  stats.bytes = entries_.bytes() + directories_.bytes() +
                num_nodes_ * static_cast<int64_t>(sizeof(Directory*)) + (sides_ ? num_nodes_.load() : 0);
  return stats;
}

}  // namespace tgflow
