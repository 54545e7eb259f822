#include "tgflow/frontier.hpp"

#include "tgflow/detail/frontier_query.hpp"

namespace tgflow {
namespace {

/// A frontier under construction.
class Frontier {
 public:
  Frontier(const FrontierOut& out, int64_t capacity, RowIndex& index) : out_(out), index_(index) {
    index_.reset(capacity);
  }

  int64_t size() const { return size_; }

  int64_t add(node_t node, tick_t t, int64_t position) {
    if (out_.t == nullptr) t = 0;
    if (out_.position == nullptr) position = 0;
    const uint64_t hash = hash_of({node, t, position});
    const int64_t row = index_.find_or_insert(hash, static_cast<int32_t>(size_), [&](int32_t r) {
      return out_.node[r] == node && (out_.t == nullptr || out_.t[r] == t) &&
             (out_.position == nullptr || out_.position[r] == position);
    });
    if (row == size_) {
      out_.node[row] = node;
      if (out_.t != nullptr) out_.t[row] = t;
      if (out_.position != nullptr) out_.position[row] = position;
      ++size_;
    }
    return row;
  }

 private:
  FrontierOut out_;
  RowIndex& index_;
  int64_t size_ = 0;
};

}  // namespace

int64_t unique_queries(const FrontierIn& queries, const FrontierOut& out, int64_t* row, RowIndex& index) {
  Frontier frontier(out, queries.size, index);
  for (int64_t i = 0; i < queries.size; ++i) {
    row[i] = frontier.add(queries.node[i], queries.t[i], queries.position_of(i));
  }
  return frontier.size();
}

int64_t expand_frontier(const FrontierIn& targets, const NeighborsIn& neighbors, double seconds_per_tick,
                        const FrontierOut& below, const BlockOut& block, RowIndex& index) {
  const int64_t k = neighbors.k;
  Frontier frontier(below, targets.size * (k + 1), index);
  for (int64_t i = 0; i < targets.size; ++i) {
    block.target[i] = frontier.add(targets.node[i], targets.t[i], targets.position_of(i));
  }
  for (int64_t i = 0; i < targets.size; ++i) {
    for (int64_t slot = i * k; slot < (i + 1) * k; ++slot) {
      const bool present = neighbors.node[slot] != kNoNode;
      block.mask[slot] = present;
      block.neighbor[slot] =
          present ? frontier.add(neighbors.node[slot], neighbors.t[slot], targets.position_of(i)) : 0;
      block.dt[slot] =
          present ? static_cast<float>(seconds_between(neighbors.t[slot], targets.t[i], seconds_per_tick))
                  : 0.0F;
    }
  }
  return frontier.size();
}

std::vector<int64_t> unique_events(const std::vector<EventList>& lists, eid_t* out, RowIndex& index) {
  int64_t total = 0;
  for (const EventList& list : lists) total += list.size;
  index.reset(total);
  out[0] = kNoEvent;
  int64_t count = 1;
  std::vector<int64_t> counts{count};
  for (const EventList& list : lists) {
    for (int64_t i = 0; i < list.size; ++i) {
      const eid_t e = list.eid[i];
      int64_t row = 0;
      if (e != kNoEvent) {
        row = index.find_or_insert(id_tag(e), static_cast<int32_t>(count),
                                   [&](int32_t r) { return out[r] == e; });
        if (row == count) out[count++] = e;
      }
      list.row[i] = row;
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace tgflow
