// Every allocation of a change fails once: the graph must be unchanged, without leaks.
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "check.hpp"
#include "graph_of.hpp"

namespace {

thread_local int64_t allocations_left = INT64_MAX;  // of this thread, until one fails

bool fails_now() { return allocations_left != INT64_MAX && --allocations_left == 0; }

}  // namespace

void* operator new(size_t bytes) {
  void* piece = fails_now() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (piece == nullptr) throw std::bad_alloc();
  return piece;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return fails_now() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* piece) noexcept { std::free(piece); }
void operator delete(void* piece, size_t) noexcept { std::free(piece); }

namespace tgflow {
namespace {

class FailingMemory : public HostMemory {
 public:
  void* allocate(int64_t bytes) noexcept override {
    return fails_now() ? nullptr : HostMemory::allocate(bytes);
  }
};

constexpr node_t kNodes = 60;

/// A graph with a past: late events, deletions, two tiers.
std::unique_ptr<TemporalGraph> graph_with_a_past(const Columns& columns) {
  const auto memory = std::make_shared<FailingMemory>();
  auto graph =
      std::make_unique<TemporalGraph>(Direction::kUndirected, StoreMemory{memory, memory, memory, 16 << 10});
  graph->append(columns.slice(100, 1200));
  graph->append(columns.slice(0, 50), true);
  std::vector<eid_t> gone;
  for (eid_t e = 0; e < 1000; e += 7) gone.push_back(e);
  graph->remove(gone.data(), static_cast<int64_t>(gone.size()));
  graph->append(columns.slice(1200, 1500));
  return graph;
}

/// All entries visible to present and earlier cut-offs.
std::vector<eid_t> content(TemporalGraph& graph) {
  Asked asked(4 * kNodes, 200);
  for (size_t i = 0; i < asked.node.size(); ++i) {
    asked.node[i] = static_cast<node_t>(i) % kNodes;
    asked.t[i] = INT64_MAX;
    asked.before[i] = i < 3 * kNodes ? graph.log().size() : 1100;
  }
  sample_neighbors(graph.store(), asked.queries(), {}, asked.rows());
  return asked.out_eid;
}

void fail_everywhere(const std::function<void(TemporalGraph&)>& change, bool keeps_the_past, int64_t step) {
  const Columns columns = made_events(2500, kNodes, 15);
  bool failed = true;
  for (int64_t point = 1; failed; point += step) {
    const auto graph = graph_with_a_past(columns);
    const auto before = content(*graph);
    const eid_t size = graph->log().size();
    allocations_left = point;
    const std::string message = message_of([&] { change(*graph); });
    failed = allocations_left <= 0;
    allocations_left = INT64_MAX;
    if (!message.empty()) {
      CHECK(graph->log().size() == size && graph->store().position() == size);
      if (keeps_the_past) CHECK(content(*graph) == before);
    }
    graph->compact();
    const StoreStats stats = graph->stats();
    CHECK(stats.tiers[0].num_entries + stats.tiers[1].num_entries == stats.num_entries);
  }
}

TEST(an_append_that_fails_anywhere_changes_nothing) {
  const Columns columns = made_events(2500, kNodes + 20, 15);
  fail_everywhere([&](TemporalGraph& graph) { graph.append(columns.slice(1500, 2500)); }, true, 1);
}

TEST(a_late_batch_that_fails_anywhere_changes_nothing) {
  const Columns columns = made_events(2500, kNodes, 15);
  fail_everywhere([&](TemporalGraph& graph) { graph.append(columns.slice(50, 100), true); }, true, 1);
}

TEST(a_deletion_that_fails_anywhere_changes_nothing) {
  const std::vector<eid_t> gone{1, 2, 500, 1001, 1300};
  fail_everywhere([&](TemporalGraph& graph) { graph.remove(gone.data(), 5); }, true, 1);
}

TEST(forgetting_that_fails_anywhere_changes_nothing) {
  fail_everywhere([&](TemporalGraph& graph) { graph.retain(INT64_MIN, 20); }, true, 1);
}

TEST(compaction_that_fails_anywhere_loses_nothing_that_is_to_stay) {
  fail_everywhere([&](TemporalGraph& graph) { graph.compact(); }, false, 5);
}

}  // namespace
}  // namespace tgflow
