// Compaction: the past that changes have replaced is given up, and sparse memory is given back.
#include <algorithm>
#include <utility>

#include "tgflow/block_store.hpp"

namespace tgflow {

void BlockStore::compact() {
  const int64_t num_nodes = num_nodes_.load();
  for (node_t v = 0; v < num_nodes; ++v) give_up_past(v);
  epochs_.collect();
  epochs_.collect();
  entries_.close_chunks();
  for (node_t v = 0; v < num_nodes; ++v) leave_sparse_chunks(v);
  renew_directories();
  max_blocks_ = 0;
  for (node_t v = 0; v < num_nodes; ++v) {
    if (heads_[v] != nullptr) max_blocks_ = std::max<int64_t>(max_blocks_, heads_[v]->num_blocks);
  }
  epochs_.collect();
  epochs_.collect();
  entries_.forget_stale_pieces();
}

void BlockStore::give_up_past(node_t v) {
  Directory* dir = heads_[v];
  if (dir == nullptr || dir->version == nullptr) return;
  const eid_t merged_at = dir->version->merged_at;
  if (dir->version->older == nullptr && dir->total != 0) return;  // given up before
  Directory* kept = nullptr;
  if (dir->total != 0) {
    Version* version = nullptr;
    if (merged_at != 0) {
      // Its entries are not in the order of their events: a cut-off before sees nothing of them.
      version = static_cast<Version*>(directories_->allocate(sizeof(Version)));
      *version = {merged_at, 0, nullptr, merged_at};
    }
    const auto bytes = static_cast<size_t>(directory_bytes(dir->max_blocks));
    kept = static_cast<Directory*>(directories_->allocate(bytes));
    *kept = {dir->total, dir->num_blocks, dir->max_blocks, version, 0};
    std::copy(dir->blocks(), dir->blocks() + dir->num_blocks, kept->blocks());
  }
  store_release(&heads_[v], kept);
  for (const Directory* newer = dir; newer != nullptr;) {
    const Version* version = newer->version;
    const Directory* older = version == nullptr ? nullptr : version->older;
    epochs_.expect(3 + (older == nullptr ? 0 : older->num_blocks));
    if (older != nullptr) retire_unshared(*older, *newer);
    if (version != nullptr)
      epochs_.retire(*directories_, reinterpret_cast<uint64_t>(version), sizeof(Version));
    retire_directory(newer);
    newer = older;
  }
}

/// Retires the blocks of `older` that `newer`, the version after it, does not share.
void BlockStore::retire_unshared(const Directory& older, const Directory& newer) {
  std::vector<place_t> shared;
  for (uint32_t b = 0; b < newer.num_blocks; ++b) shared.push_back(newer.blocks()[b].place);
  std::sort(shared.begin(), shared.end());
  for (uint32_t b = 0; b < older.num_blocks; ++b) {
    const Block& block = older.blocks()[b];
    if (std::binary_search(shared.begin(), shared.end(), block.place)) continue;
    const int64_t end = b + 1 < older.num_blocks ? older.blocks()[b + 1].start : older.total;
    epochs_.retire(entries_, block.place, static_cast<uint64_t>(end - block.start));
  }
}

/// Moves the blocks of `v` that lie in sparse chunks to denser ones of their tier.
void BlockStore::leave_sparse_chunks(node_t v) {
  Directory* dir = heads_[v];
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    Block& block = dir->blocks()[b];
    const place_t place = block.place;
    if (!entries_.is_sparse(place)) continue;
    const bool tail = b + 1 == dir->num_blocks;
    const int64_t size = (tail ? dir->total : dir->blocks()[b + 1].start) - block.start;
    epochs_.expect(1);
    const place_t to = entries_.allocate(tail ? capacity_of(place) : size, entries_.tier(place));
    std::copy_n(entries_.entries(place), size, entries_.entries(to));
    entries_.add_entries(to, size);
    store_release(&block.place, to);
    epochs_.retire(entries_, place, static_cast<uint64_t>(size));
  }
}

/// Copies all directories to memory without holes, where the holes are more than a quarter of it.
void BlockStore::renew_directories() {
  if (4 * directories_->bytes_in_use() > 3 * directories_->bytes()) return;
  auto renewed = std::make_unique<Arena>(64, *memory_.directories);
  const int64_t num_nodes = num_nodes_.load();
  std::vector<Directory*> copies(static_cast<size_t>(num_nodes), nullptr);
  for (node_t v = 0; v < num_nodes; ++v) {
    const Directory* dir = heads_[v];
    if (dir == nullptr) continue;
    const auto max_blocks = directory_room(dir->num_blocks);
    auto* copy = static_cast<Directory*>(renewed->allocate(static_cast<size_t>(directory_bytes(max_blocks))));
    *copy = {dir->total, dir->num_blocks, max_blocks, nullptr, 0};
    std::copy(dir->blocks(), dir->blocks() + dir->num_blocks, copy->blocks());
    if (dir->version != nullptr) {
      auto* version = static_cast<Version*>(renewed->allocate(sizeof(Version)));
      *version = *dir->version;
      copy->version = version;
    }
    copies[static_cast<size_t>(v)] = copy;
  }
  epochs_.expect(1);
  for (node_t v = 0; v < num_nodes; ++v) store_release(&heads_[v], copies[static_cast<size_t>(v)]);
  epochs_.retire(old_arenas_, reinterpret_cast<uint64_t>(directories_.release()), 0);
  directories_ = std::move(renewed);
}

}  // namespace tgflow
