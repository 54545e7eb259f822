#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "check.hpp"
#include "graph_of.hpp"
#include "tgflow/detail/sample_row.hpp"

namespace tgflow {
namespace {

StoreMemory with_budget(int64_t bytes) {
  StoreMemory memory;
  memory.device_budget = bytes;
  return memory;
}

/// A node with more than 2^31 entries, all of whose blocks share the same memory.
class HugeNode {
 public:
  static constexpr int64_t kBlocks = (int64_t{1} << 31) / kMaxChained + 3;
  static constexpr int64_t kTotal = kBlocks * kMaxChained - 5;

  HugeNode()
      : entries_(kMaxChained), memory_(static_cast<size_t>(directory_bytes(kBlocks)) / sizeof(int64_t)) {
    for (int64_t i = 0; i < kMaxChained; ++i) {
      entries_[static_cast<size_t>(i)] = {0, static_cast<uint32_t>(i), static_cast<uint32_t>(i)};
    }
    dir_ = reinterpret_cast<Directory*>(memory_.data());
    *dir_ = {kTotal, static_cast<uint32_t>(kBlocks), static_cast<uint32_t>(kBlocks), nullptr, 0};
    const place_t place = place_of(0, 0, kMaxChained);
    for (int64_t b = 0; b < kBlocks; ++b) dir_->blocks()[b] = {place, b * kMaxChained, 0, b * kMaxChained};
    chunk_ = entries_.data();
  }
  StoreView view() const { return {&dir_, 1, &chunk_, &tier_}; }
  Directory* dir() { return dir_; }

 private:
  std::vector<Entry> entries_;
  std::vector<int64_t> memory_;
  Directory* dir_;
  Entry* chunk_;
  uint8_t tier_ = 0;
};

TEST(a_node_may_have_more_than_2_to_the_31_entries) {
  HugeNode node;
  const eid_t all = HugeNode::kTotal;
  Asked asked(4, 12);
  asked.t = {1, 1, 1, 0};
  asked.before = {all, (eid_t{1} << 31) + 7, 100, all};
  const std::vector<int64_t> count{all, (eid_t{1} << 31) + 7, 100, 0};
  for (const Strategy strategy : {Strategy::kRecent, Strategy::kUniform}) {
    eid_t largest = 0;
    for (int64_t i = 0; i < 4; ++i) {
      sample_row(node.view(), asked.queries(), {strategy, 5}, i, asked.rows());
      CHECK(asked.count[static_cast<size_t>(i)] == std::min<int64_t>(12, count[static_cast<size_t>(i)]));
      for (int64_t j = 0; j < asked.count[static_cast<size_t>(i)]; ++j) {
        const size_t slot = static_cast<size_t>(i * 12 + j);
        const eid_t eid = asked.out_eid[slot];
        CHECK(eid >= 0 && eid < asked.before[static_cast<size_t>(i)]);
        CHECK(strategy == Strategy::kUniform || eid == asked.before[static_cast<size_t>(i)] - 1 - j);
        CHECK(asked.out_node[slot] == eid % kMaxChained);
        largest = std::max(largest, eid);
      }
    }
    CHECK(largest > eid_t{1} << 30);
  }
  const auto eids = [&](int64_t j) { return all + j; };
  const RunPlan plan = plan_run(node.view(), node.dir(), 40000, kMaxChained, eids);
  CHECK(plan.in_tail == 5 && plan.num_blocks == 3 && plan.max_blocks > HugeNode::kBlocks);
}

TEST(compaction_leaves_the_past_to_whoever_still_reads_it) {
  const Columns columns = made_events(2000, 5, 12);
  TemporalGraph graph(Direction::kUndirected);
  graph.append(columns.slice(0, 2000));
  std::atomic<bool> compacted{false};
  std::thread compaction;
  {
    const Epochs::Reader reader(graph.store().epochs());
    const StoreView before = graph.store().view();
    std::vector<int64_t> totals;
    for (node_t v = 0; v < 5; ++v) totals.push_back(before.directory(v, 2000)->total);
    const eid_t gone[] = {3, 700, 1999};
    graph.remove(gone, 3);
    graph.retain(INT64_MIN, 50);
    compaction = std::thread([&] {
      graph.compact();
      compacted = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(!compacted);
    for (node_t v = 0; v < 5; ++v) CHECK(before.directory(v, 2000)->total == totals[static_cast<size_t>(v)]);
  }
  compaction.join();
  CHECK(graph.store().view().directory(0, 2000)->total == 50);
}

TEST(a_reader_does_not_empty_the_device_tier) {
  const Columns columns = made_events(20000, 400, 13);
  TemporalGraph graph(Direction::kUndirected, with_budget(64 << 10));
  {
    const Epochs::Reader reader(graph.store().epochs());
    for (int64_t at = 0; at < columns.size(); at += 500) graph.append(columns.slice(at, at + 500));
    CHECK(graph.stats().tiers[0].bytes > 64 << 10);  // moved chunks are still being read
  }
  graph.append(columns.slice(columns.size() - 1, columns.size()));
  CHECK(graph.stats().tiers[0].bytes <= 64 << 10);
  CHECK(graph.stats().tiers[0].bytes > 48 << 10);
}

}  // namespace
}  // namespace tgflow
