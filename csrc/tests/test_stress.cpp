#include <atomic>
#include <thread>

#include "check.hpp"
#include "graph_of.hpp"

namespace tgflow {
namespace {

/// Every row must be the answer at the reader's snapshot, whatever is being inserted.
void read_until(TemporalGraph& graph, const Columns& columns, const std::atomic<bool>& done,
                std::atomic<int>& wrong) {
  Asked asked(64, 6);
  const Queries all{asked.node.data(), asked.t.data(), nullptr, INT64_MAX, 64};
  for (uint64_t round = 0; !done; ++round) {
    const eid_t before = graph.store().position();
    for (size_t i = 0; i < 64; ++i) {
      asked.node[i] = static_cast<node_t>((round + i) % 50);
      asked.t[i] = INT64_MAX;
    }
    if (round % 2 == 0) {
      sample_neighbors(graph.store(), all, {}, asked.rows());
    } else {
      sample_neighbors(graph.store(), all, {Strategy::kUniform, round}, asked.rows());
    }
    for (size_t slot = 0; slot < asked.out_eid.size(); ++slot) {
      const eid_t eid = asked.out_eid[slot];
      if (eid == kNoEvent) continue;
      const node_t v = asked.node[slot / 6];
      const size_t row = static_cast<size_t>(eid);
      const node_t nbr = columns.src[row] == v ? columns.dst[row] : columns.src[row];
      if ((columns.src[row] != v && columns.dst[row] != v) || nbr != asked.out_node[slot]) ++wrong;
      if (round % 2 == 0 && slot % 6 != 0 && eid >= asked.out_eid[slot - 1]) ++wrong;
    }
    if (graph.store().position() < before || graph.log().size() < before) ++wrong;
  }
}

void stress(StoreMemory memory) {
  const Columns columns = made_events(20000, 50, 7);
  TemporalGraph graph(Direction::kUndirected, std::move(memory));
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back([&] { read_until(graph, columns, done, wrong); });
  for (int64_t at = 0; at < columns.size(); at += 50) graph.append(columns.slice(at, at + 50));
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(graph.stats().num_entries > 30000);
}

TEST(stress_readers_beside_a_writer) { stress({}); }

TEST(stress_readers_while_blocks_move_to_the_lower_tier) {
  StoreMemory memory;
  memory.upper_budget = 64 << 10;
  stress(std::move(memory));
}

}  // namespace
}  // namespace tgflow
