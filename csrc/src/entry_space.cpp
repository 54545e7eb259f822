#include "tgflow/entry_space.hpp"

#include <algorithm>
#include <cstring>

#include "tgflow/detail/insert_run.hpp"

namespace tgflow {
namespace {

constexpr int64_t kEntryBytes = sizeof(Entry);
constexpr int64_t kMaxChunks = int64_t{1} << (kPlaceBits - kChunkBits - 6);  // address space, not memory
constexpr int64_t kLargestChunk = int64_t{8} << 20;  // its unfilled part is a small share of a large store
constexpr int64_t kSmallestChunk = 1024;
constexpr int64_t kFirstChunk = int64_t{64} << 10;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kChunksInBudget = 16;
constexpr int64_t kBlocksInChunk = 4;

int64_t round_down(int64_t bytes, int64_t step) { return bytes / step * step; }

}  // namespace

EntrySpace::EntrySpace(Epochs& epochs, TierMemory& device, TierMemory& host, int64_t device_budget)
    : epochs_(epochs),
      memory_{&device, &host},
      moved_{*this},
      budget_(device_budget),
      chunk_bytes_(std::clamp(round_down(device_budget / kChunksInBudget, kSmallestChunk), kSmallestChunk,
                              kLargestChunk)),
      max_capacity_(std::min(kMaxChained, chunk_bytes_ / kEntryBytes / kBlocksInChunk)),
      chunks_(kMaxChunks),
      tiers_(kMaxChunks) {}

EntrySpace::~EntrySpace() {
  for (size_t chunk = 0; chunk < infos_.size(); ++chunk) {
    const int64_t bytes = infos_[chunk].size * kEntryBytes;
    if (bytes == 0) continue;
    Entry* data = chunks_[static_cast<int64_t>(chunk)];
    ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
    memory_[tiers_[static_cast<int64_t>(chunk)]]->free(data, bytes);
  }
}

bool EntrySpace::reuse(int64_t capacity, int tier, place_t& place) {
  const auto found = free_[tier].find(capacity);
  if (found == free_[tier].end()) return false;
  std::vector<place_t>& places = found->second;
  while (!places.empty()) {
    place = places.back();
    places.pop_back();
    if (!is_stale(place, tier) && !is_sparse(place)) return true;
  }
  return false;
}

place_t EntrySpace::allocate(int64_t capacity, int tier) {
  place_t place = 0;
  if (!reuse(capacity, tier, place)) {
    const bool fits = open_[tier] >= 0 && infos_[static_cast<size_t>(open_[tier])].used + capacity <=
                                              infos_[static_cast<size_t>(open_[tier])].size;
    if (!fits) open_chunk(tier, capacity);
    Chunk& chunk = infos_[static_cast<size_t>(open_[tier])];
    place = place_of(open_[tier], chunk.used, capacity);
    chunk.used += capacity;
  }
  Chunk& chunk = infos_[info(place)];
  chunk.live += capacity;
  chunk.num_blocks += 1;
  ASAN_UNPOISON_MEMORY_REGION(entries(place), static_cast<size_t>(capacity * kEntryBytes));
  return place;
}

void EntrySpace::free(place_t place, int64_t num_entries) noexcept {
  Chunk& chunk = infos_[info(place)];
  chunk.live -= capacity_of(place);
  chunk.num_blocks -= 1;
  chunk.num_entries -= num_entries;
  ASAN_POISON_MEMORY_REGION(entries(place), static_cast<size_t>(capacity_of(place) * kEntryBytes));
  if (chunk.live == 0 && static_cast<int64_t>(info(place)) != open_[tier(place)]) {
    give_back_if_empty(info(place));
    return;
  }
  try {
    std::vector<place_t>& places = free_[tier(place)][capacity_of(place)];
    if (places.size() == places.capacity()) places.reserve(places.size() + places.size() / 4 + 16);
    places.push_back(place);
  } catch (const std::bad_alloc&) {  // then it is not reused until the store is compacted
  }
}

void EntrySpace::give_back_if_empty(size_t chunk) noexcept {
  Chunk& given = infos_[chunk];
  if (given.live != 0 || given.size == 0) return;
  const int tier = tiers_[static_cast<int64_t>(chunk)];
  Entry* data = chunks_[static_cast<int64_t>(chunk)];
  const int64_t bytes = given.size * kEntryBytes;
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
  memory_[tier]->free(data, bytes);
  bytes_[tier] -= bytes;
  given = {};
}

/// Chunks grow with the tier: a small graph stays small, and a large one uses huge pages.
int64_t EntrySpace::next_chunk_bytes(int tier, int64_t capacity) const {
  const int64_t held = bytes_[tier];
  const int64_t wanted = held < 4 * kFirstChunk ? kFirstChunk : held / 16;
  const int64_t step = wanted >= kHugePage ? kHugePage : kSmallestChunk;
  const int64_t bytes = std::clamp(round_down(wanted, step), kSmallestChunk, chunk_bytes_);
  return std::max(bytes, (capacity * kEntryBytes + kSmallestChunk - 1) / kSmallestChunk * kSmallestChunk);
}

void EntrySpace::open_chunk(int tier, int64_t capacity) {
  const int64_t bytes = next_chunk_bytes(tier, capacity);
  const bool is_new = free_numbers_.empty();
  const int64_t number = is_new ? static_cast<int64_t>(infos_.size()) : free_numbers_.back();
  chunks_.grow(number + 1);
  tiers_.grow(number + 1);
  if (infos_.size() == infos_.capacity()) infos_.reserve(2 * infos_.size() + 16);
  if (tier == 0 && bytes_staying() + bytes > budget_) move_down(budget_ - bytes);
  if (tier == 0) on_device_.push_back(number);
  Entry* data = nullptr;
  try {
    data = static_cast<Entry*>(memory_[tier]->allocate(bytes));
    if (data == nullptr) {
      throw OutOfMemory(tier == 0 ? "the store's device tier" : "the store's host tier", bytes);
    }
  } catch (...) {
    if (tier == 0) on_device_.pop_back();
    throw;
  }
  ASAN_POISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
  bytes_[tier] += bytes;
  if (is_new) {
    infos_.emplace_back();
  } else {
    free_numbers_.pop_back();
  }
  infos_[static_cast<size_t>(number)].size = bytes / kEntryBytes;
  store_release(&tiers_[number], static_cast<uint8_t>(tier));
  store_release(&chunks_[number], data);
  const int64_t filled = std::exchange(open_[tier], number);
  if (filled >= 0) give_back_if_empty(static_cast<size_t>(filled));
}

void EntrySpace::move_down(int64_t bytes) {
  while (bytes_staying() > bytes && !on_device_.empty()) {
    const int64_t number = on_device_.front();
    const auto chunk = static_cast<size_t>(number);
    if (number == open_[0]) open_[0] = -1;
    if (infos_[chunk].live == 0) {
      give_back_if_empty(chunk);
    } else {
      move_chunk_down(chunk);
    }
    on_device_.pop_front();
  }
}

void EntrySpace::move_chunk_down(size_t chunk) {
  const auto number = static_cast<int64_t>(chunk);
  const int64_t bytes = infos_[chunk].size * kEntryBytes;
  epochs_.expect(1);
  auto* data = static_cast<Entry*>(memory_[1]->allocate(bytes));
  if (data == nullptr) throw OutOfMemory("the store's host tier", bytes);
  Entry* old = chunks_[number];
  ASAN_UNPOISON_MEMORY_REGION(old, static_cast<size_t>(bytes));
  std::memcpy(data, old, static_cast<size_t>(bytes));
  bytes_[1] += bytes;
  leaving_ += bytes;
  store_release(&tiers_[number], uint8_t{1});
  store_release(&chunks_[number], data);
  epochs_.retire(moved_, reinterpret_cast<uint64_t>(old), static_cast<uint64_t>(bytes));
  epochs_.collect();
}

void EntrySpace::close_chunks() {
  for (int64_t& open : open_) {
    const int64_t filled = std::exchange(open, -1);
    if (filled >= 0) give_back_if_empty(static_cast<size_t>(filled));
  }
  for (Chunk& chunk : infos_) chunk.sparse = 4 * chunk.live < 3 * chunk.size;
}

void EntrySpace::forget_stale_pieces() {
  for (const int tier : {0, 1}) {
    for (auto& [capacity, places] : free_[tier]) {
      const auto stale = [&](place_t place) { return is_stale(place, tier) || is_sparse(place); };
      places.erase(std::remove_if(places.begin(), places.end(), stale), places.end());
      places.shrink_to_fit();
    }
  }
  const auto has_left = [&](int64_t number) {
    return infos_[static_cast<size_t>(number)].size == 0 || tiers_[number] != 0;
  };
  on_device_.erase(std::remove_if(on_device_.begin(), on_device_.end(), has_left), on_device_.end());
  free_numbers_.clear();  // no piece refers to a freed chunk any more
  for (size_t chunk = 0; chunk < infos_.size(); ++chunk) {
    if (infos_[chunk].size == 0) free_numbers_.push_back(static_cast<int64_t>(chunk));
  }
}

int64_t EntrySpace::index_bytes() const {
  size_t bytes =
      infos_.capacity() * sizeof(Chunk) + (free_numbers_.capacity() + on_device_.size()) * sizeof(int64_t);
  for (const auto& by_capacity : free_) {
    for (const auto& [capacity, places] : by_capacity) bytes += places.capacity() * sizeof(place_t);
  }
  return static_cast<int64_t>(bytes);
}

TierStats EntrySpace::stats(int tier) const {
  TierStats stats;
  for (size_t i = 0; i < infos_.size(); ++i) {
    const Chunk& chunk = infos_[i];
    if (chunk.size == 0 || tiers_[static_cast<int64_t>(i)] != tier) continue;
    stats.num_blocks += chunk.num_blocks;
    stats.num_entries += chunk.num_entries;
    stats.capacity += chunk.live;
  }
  stats.bytes = bytes_[tier];
  return stats;
}

void EntrySpace::Moved::reclaim(uint64_t chunk, uint64_t bytes) noexcept {
  const auto size = static_cast<int64_t>(bytes);
  space.memory_[0]->free(reinterpret_cast<void*>(chunk), size);
  space.bytes_[0] -= size;
  space.leaving_ -= size;
}

}  // namespace tgflow
