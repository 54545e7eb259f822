// The time-indexed block store: per node a directory of blocks of neighbors in log order.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tgflow/arena.hpp"
#include "tgflow/detail/store_view.hpp"
#include "tgflow/epochs.hpp"
#include "tgflow/events.hpp"
#include "tgflow/reserved_array.hpp"

namespace tgflow {

enum class Direction { kUndirected, kDirected, kBipartite };

struct StoreStats {
  int64_t num_entries = 0;
  int64_t num_blocks = 0;
  int64_t capacity = 0;    ///< Entries that the blocks have room for.
  int64_t max_blocks = 0;  ///< The longest directory.
  int64_t bytes = 0;       ///< Everything, retired and free pieces included.
};

/// One thread inserts while any number read: neither waits for the other.
class BlockStore {
 public:
  explicit BlockStore(Direction direction);

  /// Throws std::invalid_argument if `events` put a node on both sides of a bipartite graph.
  void check(const Events& events);
  /// Adds `events`, checked, whose first one is event `first_eid` of the log; readers see all or none of
  /// them.
  void insert(const Events& events, eid_t first_eid);

  Direction direction() const { return direction_; }
  /// The snapshot: readers see the events below this log position.
  eid_t position() const { return position_.load(std::memory_order_acquire); }
  /// Valid while an `Epochs::Reader` of `epochs()`, made before, lives.
  StoreView view() const;
  Epochs& epochs() { return epochs_; }
  StoreStats stats();

 private:
  /// An entry to be: the node it belongs to, and the event's row and direction.
  struct Pair {
    uint32_t node;
    uint32_t row_and_side;
  };

  std::vector<Pair> sorted_pairs(const Events& events) const;
  void mark_sides(const Events& events, std::vector<uint8_t*>& marked);
  /// Fetches what the runs after `runs[0]` will need, one step of their look-ups at a time.
  void prefetch_ahead(const Pair* const* runs) const;
  void append_run(const Pair* run, int64_t size, const Events& events, eid_t first_eid);
  int64_t fill_tail(Directory& dir, const Pair* run, int64_t size, const Events& events, eid_t first_eid);
  void grow_only_block(Directory& dir, int64_t num_entries);
  /// Gives node `v` another block; publishes the directory, which may be a new one.
  Directory& with_new_block(node_t v, Directory* old, int64_t num_entries, eid_t base_eid, tick_t first_t);
  /// `old` or, where it is full or null, an unpublished copy with room for another block.
  Directory& with_room(Directory* old);

  Direction direction_;
  Arena entries_{sizeof(Entry)};
  Arena directories_{64};
  Epochs epochs_;
  ReservedArray<Directory*> heads_;
  std::unique_ptr<ReservedArray<uint8_t>> sides_;  // bipartite: 1 = source, 2 = destination
  std::atomic<int64_t> num_nodes_{0};
  std::atomic<eid_t> position_{0};
  StoreStats stats_;
};

}  // namespace tgflow
