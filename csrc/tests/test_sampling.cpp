#include <cmath>
#include <random>

#include "check.hpp"
#include "graph_of.hpp"
#include "tgflow/detail/sample_row.hpp"

namespace tgflow {
namespace {

/// The number of 2^64 values of `bits` for which the coin comes up.
uint64_t chance_of(uint64_t num, uint64_t den) {
  uint64_t low = 0, high = ~uint64_t{0};
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (half_power_coin(middle, num, den)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

TEST(the_coin_comes_up_with_its_probability) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t den = (random() >> (1 + random() % 63)) | 1;
    const uint64_t num = i % 3 == 0 ? random() % den : random() >> (random() % 64);
    const double exact = std::exp2(-static_cast<double>(num) / static_cast<double>(den));
    const double got = static_cast<double>(chance_of(num, den)) / 0x1p64;
    CHECK(std::abs(got - exact) <= 1e-9 * exact + 0x1p-63);
  }
  CHECK(chance_of(0, 5) == ~uint64_t{0} && chance_of(64, 1) == 0 && chance_of(~uint64_t{0}, 1) == 0);
  CHECK(chance_of(1, 1) == uint64_t{1} << 63);
}

/// Events with types 0 to 4.
TemporalGraph& graph_of_types(const Columns& columns) {
  static std::vector<int64_t> label;
  static TemporalGraph graph(Direction::kUndirected);
  for (int64_t i = 0; i < columns.size(); ++i) label.push_back(i * i % 5);
  for (int64_t at = 0; at < columns.size(); at += 100) {
    Events events = columns.slice(at, at + 100);
    events.label = label.data() + at;
    graph.append(events);
  }
  return graph;
}

TEST(groups_of_queries_are_answered_as_each_alone) {
  const Columns columns = made_events(20000, 40, 5);
  TemporalGraph& graph = graph_of_types(columns);
  const StoreView store = graph.store().view();
  const std::vector<uint64_t> some_types = [] {
    std::vector<uint64_t> bits(1024);
    bits[0] = 0b10010;
    return bits;
  }();
  std::mt19937_64 random(8);
  for (const Strategy strategy :
       {Strategy::kRecent, Strategy::kUniform, Strategy::kWindow, Strategy::kDecayed}) {
    for (const int64_t span : {1, 30, 2000}) {
      for (const uint64_t* types : {static_cast<const uint64_t*>(nullptr), some_types.data()}) {
        const Sampler sampler{strategy, random(), span, types};
        Asked grouped(150, 12), alone(150, 12);
        for (size_t i = 0; i < grouped.node.size(); ++i) {
          grouped.node[i] = static_cast<node_t>(random() % 42) - 1;
          grouped.t[i] = static_cast<tick_t>(random() % 7000);
          grouped.before[i] = static_cast<eid_t>(random() % 21000);
        }
        sample_neighbors(graph.store(), grouped.queries(), sampler, grouped.rows());
        Queries queries = grouped.queries();
        queries.before_all = graph.store().position();
        for (int64_t i = 0; i < queries.size; ++i) sample_row(store, queries, sampler, i, alone.rows());
        CHECK(grouped.count == alone.count && grouped.out_node == alone.out_node &&
              grouped.out_t == alone.out_t && grouped.out_eid == alone.out_eid);
      }
    }
  }
}

}  // namespace
}  // namespace tgflow
