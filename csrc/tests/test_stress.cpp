#include <atomic>
#include <thread>
#include <vector>

#include "check.hpp"
#include "graph_of.hpp"

namespace tgflow {
namespace {

constexpr int64_t kSpan = 500;  // ticks, for strategies with a span

/// Every row must be the result at the reader's snapshot, under concurrent inserts.
void read_until(TemporalGraph& graph, const Columns& columns, const std::atomic<bool>& done,
                std::atomic<int>& wrong) {
  Asked asked(64, 6);
  const Queries all{asked.node.data(), asked.t.data(), nullptr, INT64_MAX, 64};
  for (uint64_t round = 0; !done; ++round) {
    const eid_t before = graph.store().position();
    for (size_t i = 0; i < 64; ++i) {
      asked.node[i] = static_cast<node_t>((round + i) % 50);
      asked.t[i] = columns.t.back() + 1;
    }
    sample_neighbors(graph.store(), all, {static_cast<Strategy>(round % 4), round, kSpan}, asked.rows());
    for (size_t slot = 0; slot < asked.out_eid.size(); ++slot) {
      const eid_t eid = asked.out_eid[slot];
      if (eid == kNoEvent) continue;
      const node_t v = asked.node[slot / 6];
      const size_t row = static_cast<size_t>(eid);
      const node_t nbr = columns.src[row] == v ? columns.dst[row] : columns.src[row];
      if ((columns.src[row] != v && columns.dst[row] != v) || nbr != asked.out_node[slot]) ++wrong;
      if (slot % 6 != 0 && eid >= asked.out_eid[slot - 1]) ++wrong;
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

TEST(stress_readers_beside_a_writer_of_files) { stress(StoreMemory::in_files(".")); }

/// Every row must hold events of its node, newest first, under concurrent changes.
void read_changing(TemporalGraph& graph, const Columns& columns, const std::atomic<bool>& done,
                   std::atomic<int>& wrong) {
  Asked asked(64, 6);
  for (uint64_t round = 0; !done; ++round) {
    const eid_t end = graph.store().position();
    for (size_t i = 0; i < 64; ++i) {
      asked.node[i] = static_cast<node_t>((round + i) % 50);
      asked.t[i] = i % 2 == 0 ? INT64_MAX : columns.t[static_cast<size_t>(end) / 2];
      asked.before[i] = i % 3 == 0 ? end / 2 : end;
    }
    sample_neighbors(graph.store(), asked.queries(), {}, asked.rows());
    for (size_t slot = 0; slot < asked.out_eid.size(); ++slot) {
      const size_t query = slot / 6, row = static_cast<size_t>(asked.out_eid[slot]);
      if (asked.out_eid[slot] == kNoEvent) continue;
      const node_t v = asked.node[query];
      wrong += columns.src[row] != v && columns.dst[row] != v;
      wrong += columns.t[row] != asked.out_t[slot] || asked.out_t[slot] >= asked.t[query];
      wrong += asked.out_eid[slot] >= asked.before[query];
      wrong += slot % 6 != 0 && !comes_before(asked.out_t[slot], asked.out_eid[slot], asked.out_t[slot - 1],
                                              asked.out_eid[slot - 1]);
    }
  }
}

void stress_changes(StoreMemory memory) {
  Columns columns = made_events(10000, 50, 8);
  for (size_t i = 0; i < columns.t.size(); ++i)
    columns.t[i] -= i / 50 % 5 == 4 ? 20 : 0;  // every fifth one is late
  TemporalGraph graph(Direction::kUndirected, std::move(memory));
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int64_t at = 0; at < columns.size(); at += 50) {
    graph.append(columns.slice(at, at + 50), true);
    if (at == 0) {
      for (int i = 0; i < 3; ++i) readers.emplace_back([&] { read_changing(graph, columns, done, wrong); });
    }
    const eid_t gone[] = {at, at / 2, at / 3};
    graph.remove(gone, 3);
    if (at % 1000 == 0) graph.remove_pair(static_cast<node_t>(at % 7), static_cast<node_t>(at % 5));
    if (at % 1500 == 0) graph.retain(INT64_MIN, 300);
    if (at % 700 == 0) graph.compact();
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
}

TEST(stress_readers_while_the_past_changes) {
  StoreMemory memory;
  memory.device_budget = 32 << 10;
  stress_changes(std::move(memory));
  memory = StoreMemory::in_files(".");
  memory.device_budget = 32 << 10;
  stress_changes(std::move(memory));
}

TEST(stress_readers_while_blocks_move_to_the_lower_tier) {
  StoreMemory memory;
  memory.device_budget = 64 << 10;
  stress(std::move(memory));
}

}  // namespace
}  // namespace tgflow
