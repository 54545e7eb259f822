// Synthetic events, and buffers to ask for their neighbors.
#pragma once

#include <random>
#include <vector>

#include "tgflow/sampling.hpp"
#include "tgflow/temporal_graph.hpp"

namespace tgflow {

struct Columns {
  std::vector<node_t> src;
  std::vector<node_t> dst;
  std::vector<tick_t> t;

  int64_t size() const { return static_cast<int64_t>(src.size()); }
  Events slice(int64_t begin, int64_t end) const {
    return {src.data() + begin, dst.data() + begin, t.data() + begin, nullptr, end - begin};
  }
};

/// Random events with hubs, ties and self-loops.
inline Columns made_events(int64_t size, node_t num_nodes, uint64_t seed) {
  std::mt19937_64 random(seed);
  Columns columns;
  tick_t t = -3;
  for (int64_t i = 0; i < size; ++i) {
    const auto skewed = [&] {
      return static_cast<node_t>(random() % (random() % static_cast<uint64_t>(num_nodes) + 1));
    };
    columns.src.push_back(skewed());
    columns.dst.push_back(skewed());
    columns.t.push_back(t += static_cast<tick_t>(random() % 3 == 0));
  }
  return columns;
}

/// Queries and buffers for their results.
struct Asked {
  std::vector<node_t> node;
  std::vector<tick_t> t;
  std::vector<eid_t> before;
  std::vector<node_t> out_node;
  std::vector<tick_t> out_t;
  std::vector<eid_t> out_eid;
  std::vector<int32_t> count;
  int64_t k;

  Asked(int64_t size, int64_t num_slots) : k(num_slots) {
    node.resize(static_cast<size_t>(size));
    t.resize(node.size());
    before.resize(node.size());
    count.resize(node.size());
    out_node.resize(node.size() * static_cast<size_t>(k));
    out_t.resize(out_node.size());
    out_eid.resize(out_node.size());
  }
  Queries queries() const {
    return {node.data(), t.data(), before.data(), INT64_MAX, static_cast<int64_t>(node.size())};
  }
  NeighborRows rows() { return {out_node.data(), out_t.data(), out_eid.data(), count.data(), k}; }
};

}  // namespace tgflow
