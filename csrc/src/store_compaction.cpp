// Compaction: the past that changes have replaced is given up, and sparse memory is given back.
#include <algorithm>
#include <utility>
#include <vector>

#include "tgflow/block_store.hpp"

namespace tgflow {

void BlockStore::compact() {
  // A reader that began before the last change still needs the past that it replaced.
  epochs_.wait_for_readers();
  const int64_t num_nodes = num_nodes_.load();
  for (node_t v = 0; v < num_nodes; ++v) give_up_past(v);
  epochs_.drain();
  entries_.close_chunks();
  for (node_t v = 0; v < num_nodes; ++v) leave_sparse_chunks(v);
  renew_directories();
  max_blocks_ = 0;
  for (node_t v = 0; v < num_nodes; ++v) {
    if (heads_[v] != nullptr) max_blocks_ = std::max<int64_t>(max_blocks_, heads_[v]->num_blocks);
  }
  epochs_.drain();
  entries_.forget_stale_pieces();
}

void BlockStore::give_up_past(node_t v) {
  const Directory* dir = heads_[v];
  if (dir == nullptr || dir->version == nullptr) return;
  if (dir->version->older == nullptr && dir->total != 0) return;  // given up before
  const std::vector<Epochs::Piece> past = past_of(dir);
  epochs_.expect(past.size());
  store_release(&heads_[v], dir->total == 0 ? nullptr : without_past(*dir));
  for (const Epochs::Piece& piece : past) epochs_.retire(piece);
}

/// A copy of `dir` that has no older version. Where events were merged late, its entries are not in the
/// order of their events: a cut-off before sees nothing of them.
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

/// All that `dir` and its older versions are made of but for the blocks that `dir` has.
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

/// Adds the blocks of `older` that `newer`, the version after it, does not share.
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
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
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

/// Copies all directories to memory without holes, where the holes are more than a quarter of it.
void BlockStore::renew_directories() {
  if (4 * directories_->bytes_in_use() > 3 * directories_->bytes()) return;
  auto renewed = std::make_unique<Arena>(64, *memory_.directories, kDirectories);
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
