// The memory of a store's entries: chunks in two tiers, recent ones on the device, older ones in host memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "tgflow/detail/store_view.hpp"
#include "tgflow/epochs.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

struct TierStats {
  int64_t num_blocks = 0;
  int64_t num_entries = 0;  ///< In those blocks, including older versions and retired ones.
  int64_t capacity = 0;     ///< Capacity of those blocks in entries.
  int64_t bytes = 0;
};

/// Pieces of chunks, by place. A place stays valid when its chunk moves to the other tier. Only the writer's
/// thread allocates, frees and moves; readers concurrently follow places through `chunks()`.
class EntrySpace : public Reclaimer {
 public:
  /// `device_budget` in bytes: beyond it, the device tier's oldest chunks move to `host`.
  EntrySpace(Epochs& epochs, TierMemory& device, TierMemory& host, int64_t device_budget);
  ~EntrySpace();
  EntrySpace(const EntrySpace&) = delete;
  EntrySpace& operator=(const EntrySpace&) = delete;

  /// Most entries of a block.
  int64_t max_capacity() const { return max_capacity_; }
  /// A piece of the device tier for `capacity` entries. Throws OutOfMemory.
  place_t allocate(int64_t capacity) { return allocate(capacity, 0); }
  /// A piece of the given tier.
  place_t allocate(int64_t capacity, int tier);
  /// Frees a piece that holds `num_entries`.
  void free(place_t place, int64_t num_entries) noexcept;
  void reclaim(uint64_t place, uint64_t num_entries) noexcept override {
    free(place, static_cast<int64_t>(num_entries));
  }
  /// Adds to the number of entries in a piece.
  void add_entries(place_t place, int64_t num_entries) { infos_[info(place)].num_entries += num_entries; }

  Entry* entries(place_t place) const { return chunks_[chunk_of(place)] + offset_of(place); }
  int tier(place_t place) const { return tiers_[chunk_of(place)]; }
  Entry* const* chunks() const { return chunks_.data(); }
  const uint8_t* tiers() const { return tiers_.data(); }

  /// Closes the open chunks, and marks the chunks with less than three quarters in use as
  /// sparse.
  void close_chunks();
  bool is_sparse(place_t place) const { return infos_[info(place)].sparse; }
  /// Discards free pieces whose chunks have moved or were freed.
  void forget_stale_pieces();

  TierStats stats(int tier) const;
  /// Memory beside the tiers: metadata of chunks, and lists of free pieces.
  int64_t index_bytes() const;

 private:
  struct Chunk {
    int64_t size = 0;  ///< Entries; 0 once freed.
    int64_t used = 0;  ///< Entries allocated from the front.
    int64_t live = 0;  ///< Entries in pieces in use.
    int64_t num_blocks = 0;
    int64_t num_entries = 0;
    bool sparse = false;
  };
  /// Frees the device tier's copy of a moved chunk after its last reader.
  struct Moved : Reclaimer {
    explicit Moved(EntrySpace& owner) : space(owner) {}
    void reclaim(uint64_t chunk, uint64_t bytes) noexcept override;
    EntrySpace& space;
  };

  /// Bytes of the device tier, without chunks that have moved away and are still read.
  int64_t bytes_staying() const { return bytes_[0] - leaving_; }
  size_t info(place_t place) const { return static_cast<size_t>(chunk_of(place)); }
  int64_t next_chunk_bytes(int tier, int64_t capacity) const;
  /// Opens a chunk with room for a piece of that capacity.
  void open_chunk(int tier, int64_t capacity);
  /// Moves the device tier's oldest chunks to the host until it holds at most `bytes`. Throws OutOfMemory.
  void move_down(int64_t bytes);
  void move_chunk_down(size_t chunk);
  void give_back_if_empty(size_t chunk) noexcept;
  bool is_stale(place_t place, int tier) const {
    return infos_[info(place)].size == 0 || this->tier(place) != tier;
  }
  bool reuse(int64_t capacity, int tier, place_t& place);

  Epochs& epochs_;
  TierMemory* memory_[2];
  Moved moved_;
  int64_t budget_;
  int64_t chunk_bytes_;  ///< Size of the largest chunks.
  int64_t max_capacity_;
  ReservedArray<Entry*> chunks_;
  ReservedArray<uint8_t> tiers_;
  std::vector<Chunk> infos_;
  std::deque<int64_t> on_device_;      ///< Chunks of the device tier, oldest first; some may be freed since.
  std::vector<int64_t> free_numbers_;  ///< Of freed chunks that no piece refers to.
  int64_t open_[2] = {-1, -1};         ///< The chunk being filled.
  int64_t bytes_[2] = {0, 0};
  int64_t leaving_ = 0;  ///< Bytes of the device tier that have moved away but are still read.
  std::map<int64_t, std::vector<place_t>> free_[2];  ///< By capacity.
};

}  // namespace tgflow
