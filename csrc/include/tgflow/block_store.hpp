// The time-indexed block store: per node a directory of blocks of neighbors in event order.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tgflow/arena.hpp"
#include "tgflow/detail/change_node.hpp"
#include "tgflow/detail/insert_run.hpp"
#include "tgflow/detail/store_view.hpp"
#include "tgflow/entry_space.hpp"
#include "tgflow/epochs.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/events.hpp"
#include "tgflow/memory.hpp"

namespace tgflow {

enum class Direction { kUndirected, kDirected, kBipartite };

/// Memory sources of a store. Blocks are allocated in the device tier; if it would exceed
/// `device_budget` bytes, its oldest ones move to the host tier.
struct StoreMemory {
  std::shared_ptr<TierMemory> directories = std::make_shared<HostMemory>();
  std::shared_ptr<TierMemory> device = std::make_shared<HostMemory>();
  std::shared_ptr<TierMemory> host = std::make_shared<HostMemory>();
  int64_t device_budget = INT64_MAX;
  std::shared_ptr<DiskMemory> disk{};  ///< Of log, relations and counts; null: memory.

  /// All of it in files of a folder.
  static StoreMemory in_files(const std::string& folder) {
    const auto disk = std::make_shared<DiskMemory>(folder);
    return {disk, disk, disk, INT64_MAX, disk};
  }
};

/// An edit of a node.
struct NodeEdit {
  node_t node;
  Edit edit;
};

struct StoreStats {
  int64_t num_entries = 0;    ///< Entries in the latest snapshot.
  int64_t max_blocks = 0;     ///< The longest directory.
  int64_t bytes = 0;          ///< Everything, retired and free pieces included.
  int64_t reads[2] = {0, 0};  ///< Neighbors that samplers read from each of two tiers.
  TierStats tiers[2];
};

/// One thread inserts while any number read: neither waits for the other.
class BlockStore {
 public:
  /// Empty, as of log position `first`.
  explicit BlockStore(Direction direction, StoreMemory memory = {}, Shard shard = {}, eid_t first = 0);
  ~BlockStore();

  /// Throws std::invalid_argument if `events` put a node on both sides of a bipartite graph.
  void check(const Events& events);
  /// Reserves memory for `note`. Throws std::length_error.
  void reserve_notes(const Events& events, eid_t first_eid);
  /// Stores the relations of checked events, and the sides of their nodes.
  void note(const Events& events, eid_t first_eid) noexcept;
  /// Forgets the sides of all nodes but those of these events, of which it reads `src` and `dst`.
  void renew_sides(const Events& events) noexcept;
  /// Reserves all memory for `events`, checked, as the log's events from `first_eid` on. Throws OutOfMemory
  /// or std::length_error without changes. Ends with `commit` or `abandon`.
  void reserve(const Events& events, eid_t first_eid);
  /// Inserts the reserved events; readers see all or none of them.
  void commit() noexcept;
  void abandon() noexcept;
  void insert(const Events& events, eid_t first_eid) {
    reserve(events, first_eid);
    commit();
  }

  /// Reserves all memory for a change of the past: the edits, in any order, add or remove entries of the
  /// nodes that are held. Returns the number of entries gained (or, negative, lost). As `reserve`, but ends
  /// with `commit_change` or `abandon_change`.
  int64_t reserve_edits(std::vector<NodeEdit> edits, bool puts_in);
  /// Likewise: removes entries before `min_t`, and each node's oldest until it has at most `max_count`.
  int64_t reserve_retention(tick_t min_t, int64_t max_count);
  /// Applies the change: cut-offs from `position` on, which becomes the snapshot, see all of it, others
  /// nothing.
  void commit_change(eid_t position) noexcept;
  void abandon_change() noexcept;
  /// Discards entries that only cut-offs before the latest change see, and frees memory. Waits for active
  /// readers. Throws OutOfMemory without losing retained entries.
  void compact();

  Direction direction() const { return direction_; }
  /// The snapshot: readers see the events below this log position.
  eid_t position() const { return position_.load(std::memory_order_acquire); }
  /// Valid while an `Epochs::Reader` of `epochs()`, created before, is alive.
  StoreView view() const;
  Epochs& epochs() { return epochs_; }
  bool has_two_tiers() const { return memory_.device_budget != INT64_MAX; }
  bool is_on_disk() const { return memory_.disk != nullptr; }
  /// Reads at once what finding the newest `k` entries of `dir_at(i)`, i from `begin` to `end` but at most
  /// `kReadAhead`, reads of files; k of -1: their directories alone. Null directories are skipped.
  template <typename DirAt>
  void read_ahead(size_t begin, size_t end, int64_t k, const DirAt& dir_at) const;
  static constexpr size_t kReadAhead = 2048;  ///< Nodes whose pages fit into little memory.
  /// Counts neighbors that a sampler has read from each tier. Thread-safe.
  void add_reads(const int64_t (&reads)[2]);
  const EventRelations& relations() const { return relations_; }
  /// As `EventRelations::forget`.
  void forget_relations(eid_t first) { relations_.forget(first); }
  StoreStats stats();

 private:
  /// An entry to insert: the local id of its node, and the event's row and direction.
  struct Pair {
    uint32_t node;
    uint32_t row_and_side;
  };
  static constexpr const char* kDirectories = "the store's directories";

  /// A batch between `reserve` and `commit`.
  struct Insertion {
    Events events{};
    eid_t first_eid = 0;
    std::vector<Pair> pairs;    // sorted by node
    std::vector<Pair> scratch;  // for sorting
    std::vector<RunPlan> plans;
    std::vector<place_t> places;    // of all plans' new blocks
    std::vector<Directory*> rooms;  // of all plans' new directories

    int64_t bytes() const;
  };

  /// A change of one node, between `reserve_...` and `commit_change`.
  struct ChangePlan {
    int64_t node;  // by local id
    Change change;
    size_t first_block;  // of its new ones
    size_t num_new;
    Directory* room;
    Version* version;
  };
  struct Alteration {
    std::vector<Edit> edits;
    std::vector<ChangePlan> plans;
    std::vector<NewBlock> blocks;
    std::vector<place_t> places;  // of the new blocks
    int64_t difference = 0;       // in entries
  };

  /// Frees the memory of directories after its last reader.
  struct OldArenas : Reclaimer {
    void reclaim(uint64_t arena, uint64_t) noexcept override { delete reinterpret_cast<Arena*>(arena); }
  };

  template <typename Gather>
  int64_t reserve_alteration(const Gather& gather);
  void plan_change(ChangePlan& plan);
  void reserve_blocks(ChangePlan& plan, bool ends_new, int64_t total);
  void give_up_past(node_t v);
  Directory* without_past(const Directory& dir);
  std::vector<Epochs::Piece> past_of(const Directory* dir);
  void add_unshared(const Directory& older, const Directory& newer, std::vector<Epochs::Piece>& past);
  void retire_directory(const Directory* dir);
  void leave_sparse_chunks(node_t v);
  void renew_directories();

  void note_sides(const Events& events) noexcept;
  void sort_pairs(const Events& events);
  void try_sides(const Events& events, std::vector<uint8_t*>& marked);
  void plan_all();
  void look_up_ahead(size_t i) const;
  void fetch_ahead(size_t i, const place_t*& places) const;
  void fetch_events(const Pair* pair, int64_t size) const;
  void reserve_for(const RunPlan& plan);
  void forget_insertion() noexcept;
  void leave_block(const Directory& dir) noexcept;
  Entry entry_of(const Pair& pair, eid_t base_eid) const;
  void commit_run(const StoreView& store, const RunPlan& plan, const Pair* run, const place_t*& places,
                  Directory* const*& rooms) noexcept;

  Direction direction_;
  Shard shard_;
  StoreMemory memory_;
  Epochs epochs_;
  EntrySpace entries_;
  std::unique_ptr<Arena> directories_;
  OldArenas old_arenas_;
  SparseArray<Directory*> heads_;
  std::unique_ptr<ReservedArray<uint8_t>> sides_;  // bipartite, of all nodes: 1 = source, 2 = destination
  int64_t num_sides_ = 0;
  EventRelations relations_;
  std::atomic<int64_t> num_nodes_{0};
  std::atomic<eid_t> position_;
  std::atomic<int64_t> changes_{0};
  int64_t reads_[2] = {0, 0};
  Insertion insertion_;
  Alteration alteration_;
  int64_t num_entries_ = 0;
  int64_t max_blocks_ = 0;
};

template <typename DirAt>
void BlockStore::read_ahead(size_t begin, size_t end, int64_t k, const DirAt& dir_at) const {
  ReadAhead pages;
  end = std::min(end, begin + kReadAhead);
  const auto each = [&](const auto& add) {
    for (size_t i = begin; i < end; ++i) {
      if (const Directory* dir = dir_at(i); dir != nullptr) add(dir);
    }
    pages.start();
  };
  each([&](const Directory* dir) { pages.add(dir); });
  if (k < 0) return;
  const StoreView store = view();
  each([&](const Directory* dir) {
    const Tail tail = tail_of(store, dir);
    if (tail.total == 0) return;
    const int64_t in_block = tail.total - dir->blocks()[tail.last].start;
    pages.add(tail.newest);
    pages.add(tail.newest - (std::min(std::max<int64_t>(k, 1), in_block) - 1));
  });
}

}  // namespace tgflow
