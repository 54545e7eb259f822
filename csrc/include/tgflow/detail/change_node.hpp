// Changing one node's past: the remaining entries, in order, block by block. No `std::` here.
//
// A change walks the node's blocks and passes the remaining entries to a sink: whole blocks, which the new
// directory shares with the old one, or single entries, which go to new blocks. It runs twice: a
// `ChangePlanner` counts the demand of new blocks, and once that is reserved a `ChangeWriter` writes them.
#pragma once

#include "tgflow/detail/insert_run.hpp"
#include "tgflow/detail/store_view.hpp"

namespace tgflow {

/// An entry that a change adds or removes.
struct Edit {
  tick_t t;
  eid_t eid;
  node_t nbr;
};

TGFLOW_HD inline bool comes_before(tick_t t, eid_t eid, tick_t other_t, eid_t other_eid) {
  return t < other_t || (t == other_t && eid < other_eid);
}

/// A change of one node: edits, or removal of entries that are too old or too many.
struct Change {
  const Edit* edits;  ///< Ordered by (t, eid); added events are larger than all present ones.
  int64_t num_edits;
  bool puts_in;       ///< Else removes; missing entries are skipped.
  tick_t min_t;       ///< Earlier entries are removed,
  int64_t max_count;  ///< and then the oldest, down to this number.
};

/// Number of oldest entries that a change removes.
TGFLOW_HD inline int64_t num_forgotten(const StoreView& store, const Directory* dir, const Change& change) {
  const int64_t too_old = find_prefix(store, dir, change.min_t, kEveryEvent).count;
  const int64_t too_many = dir->total - change.max_count;
  return too_old > too_many ? too_old : too_many;
}

/// Whether an edit belongs before the block that starts with `first`.
TGFLOW_HD inline bool belongs_before(const Edit& edit, bool puts_in, const Block& block, const Entry& first) {
  return puts_in ? edit.t < first.t
                 : comes_before(edit.t, edit.eid, first.t, block.base_eid + first.eid_offset);
}

/// Passes the rest of `dir` (may be null) after `change` to `sink`: `share(block, size)`, `add(t, eid, nbr)`.
template <typename Sink>
TGFLOW_HD void change_node(const StoreView& store, const Directory* dir, const Change& change, Sink& sink) {
  const int64_t num_blocks = dir == nullptr ? 0 : dir->num_blocks;
  const int64_t forgotten = num_blocks == 0 ? 0 : num_forgotten(store, dir, change);
  int64_t at = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const Block& block = dir->blocks()[b];
    const Block* next = b + 1 < num_blocks ? &block + 1 : nullptr;
    const int64_t size = size_of_block(*dir, b);
    int64_t end = next == nullptr ? change.num_edits : at;
    while (end < change.num_edits &&
           belongs_before(change.edits[end], change.puts_in, *next, *store.entries(*next))) {
      ++end;
    }
    int64_t i = forgotten - block.start;
    i = i < 0 ? 0 : i;
    if (i == 0 && at == end) {
      sink.share(block, size);
      continue;
    }
    const Entry* entries = store.entries(block);
    for (; i < size; ++i) {
      const Entry& entry = entries[i];
      const eid_t eid = block.base_eid + entry.eid_offset;
      while (at < end && comes_before(change.edits[at].t, change.edits[at].eid, entry.t, eid)) {
        if (change.puts_in) sink.add(change.edits[at].t, change.edits[at].eid, change.edits[at].nbr);
        ++at;
      }
      const bool taken_out = !change.puts_in && at < end && change.edits[at].eid == eid;
      at += taken_out;
      if (!taken_out) sink.add(entry.t, eid, entry.nbr);
    }
    for (; at < end; ++at) {
      if (change.puts_in) sink.add(change.edits[at].t, change.edits[at].eid, change.edits[at].nbr);
    }
  }
  for (; at < change.num_edits; ++at) {
    if (change.puts_in) sink.add(change.edits[at].t, change.edits[at].eid, change.edits[at].nbr);
  }
}

/// A block that a change makes.
struct NewBlock {
  int64_t size;
  eid_t base_eid;
};

/// Counts the demand of a change; calls `made(NewBlock)` for every block that it makes.
template <typename Made>
class ChangePlanner {
 public:
  TGFLOW_HD ChangePlanner(int64_t max_capacity, const Made& made)
      : made_(made), max_capacity_(max_capacity) {}

  TGFLOW_HD void share(const Block&, int64_t size) {
    close();
    ++num_blocks;
    total += size;
    ends_shared = true;
  }
  TGFLOW_HD void add(tick_t, eid_t eid, node_t) {
    const eid_t low = open_.size == 0 || eid < open_.base_eid ? eid : open_.base_eid;
    const eid_t high = open_.size == 0 || eid > last_eid_ ? eid : last_eid_;
    if (open_.size == max_capacity_ || high - low > kMaxOffset) {
      close();
      add(0, eid, 0);
      return;
    }
    open_ = {open_.size + 1, low};
    last_eid_ = high;
    ++total;
    ends_shared = false;
  }
  TGFLOW_HD void close() {
    if (open_.size == 0) return;
    made_(open_);
    ++num_blocks;
    open_ = {0, 0};
  }

  int64_t num_blocks = 0;
  int64_t total = 0;
  bool ends_shared = true;  ///< Whether the last block is an old one.

 private:
  const Made& made_;
  int64_t max_capacity_;
  NewBlock open_{0, 0};
  eid_t last_eid_ = 0;
};

/// Writes the new directory, with new blocks as planned, at `places`.
class ChangeWriter {
 public:
  TGFLOW_HD ChangeWriter(const StoreView& store, Directory* dir, const NewBlock* planned,
                         const place_t* places)
      : store_(store), dir_(dir), planned_(planned), places_(places) {}

  TGFLOW_HD void share(const Block& block, int64_t size) {
    dir_->blocks()[dir_->num_blocks++] = {block.place, block.base_eid, block.first_t, dir_->total};
    dir_->total += size;
  }
  TGFLOW_HD void add(tick_t t, eid_t eid, node_t nbr) {
    if (written_ == 0) {
      dir_->blocks()[dir_->num_blocks++] = {*places_, planned_->base_eid, t, dir_->total};
      entries_ = store_.entries_at(*places_);
    }
    entries_[written_++] = {t, static_cast<uint32_t>(nbr), static_cast<uint32_t>(eid - planned_->base_eid)};
    ++dir_->total;
    if (written_ < planned_->size) return;
    written_ = 0;
    ++planned_;
    ++places_;
  }

 private:
  const StoreView& store_;
  Directory* dir_;
  const NewBlock* planned_;
  const place_t* places_;
  Entry* entries_ = nullptr;
  int64_t written_ = 0;
};

}  // namespace tgflow
