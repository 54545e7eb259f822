// Changes of the past: every changed node gets a new version of its directory, which shares the blocks that
// stay as they are with the version before.
#include <algorithm>
#include <utility>

#include "tgflow/block_store.hpp"

namespace tgflow {

/// Plans what `gather` lists in `alteration_.plans`, by node.
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
    for (node_t v = 0; v < store.num_nodes; ++v) {
      const Directory* dir = heads_[v];
      if (dir == nullptr || dir->num_blocks == 0 || num_forgotten(store, dir, change) <= 0) continue;
      alteration_.plans.push_back({v, change, 0, 0, nullptr, nullptr});
    }
  });
}

void BlockStore::plan_change(ChangePlan& plan) {
  std::vector<NewBlock>& blocks = alteration_.blocks;
  plan.first_block = blocks.size();
  const auto made = [&](const NewBlock& block) { blocks.push_back(block); };
  const Directory* dir = heads_[plan.node];
  ChangePlanner planner(entries_.max_capacity(), made);
  change_node(view(), dir, plan.change, planner);
  planner.close();
  const int64_t difference = planner.total - (dir == nullptr ? 0 : dir->total);
  if (difference == 0) {  // nothing of it was there
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

/// Blocks within the node stay as they are: they get no more room than they need.
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

}  // namespace tgflow
