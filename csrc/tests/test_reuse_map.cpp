#include <map>
#include <vector>

#include "check.hpp"
#include "tgflow/reuse_map.hpp"

namespace tgflow {
namespace {

struct Decided {
  Decided(ReuseMap& map, int64_t batch, const std::vector<node_t>& node, int64_t staleness, double refresh,
          bool may_recur = true)
      : order(node.size()), slot(node.size()) {
    const std::vector<tick_t> t(node.size(), 5);
    const std::vector<char> may(node.size(), may_recur ? 1 : 0);
    counts = map.decide(
        batch,
        {static_cast<int64_t>(node.size()), node.data(), t.data(), reinterpret_cast<const bool*>(may.data())},
        {staleness, refresh, 7}, order.data(), slot.data());
  }
  std::vector<int64_t> order, slot;
  ReuseCounts counts;
};

TEST(reuse_map_takes_what_is_recent_enough) {
  ReuseMap map(10);
  const Decided first(map, 0, {4, 5, 6}, 2, 0.0);
  CHECK(first.counts.num_stored == 3 && (first.slot == std::vector<int64_t>{0, 1, 2}));
  const Decided second(map, 2, {9, 6, 4}, 2, 0.0);
  CHECK(second.counts.num_computed == 1 && second.counts.largest_lag == 2);
  CHECK((second.order == std::vector<int64_t>{0, 1, 2}) && (second.slot == std::vector<int64_t>{3, 2, 0}));
  const Decided third(map, 3, {4, 9}, 2, 0.0);  // 4 is of batch 0: too old; its slot is the lowest free one
  CHECK((third.order == std::vector<int64_t>{0, 1}) && (third.slot == std::vector<int64_t>{0, 3}));
  CHECK(third.counts.num_computed == 1 && third.counts.num_stored == 1);
}

TEST(reuse_map_refreshes_in_place_and_forgets_by_the_latest_batch) {
  ReuseMap map(4);
  Decided(map, 0, {1, 2}, 1, 1.0);
  const Decided again(map, 1, {2, 3}, 1, 1.0);
  CHECK(again.counts.num_refreshed == 1 && again.counts.num_stored == 2 && again.counts.num_computed == 2);
  CHECK((again.slot == std::vector<int64_t>{1, 2}));
  const Decided later(map, 2, {1, 2}, 1, 0.0);
  CHECK((later.order == std::vector<int64_t>{0, 1}) && (later.slot == std::vector<int64_t>{0, 1}));
  CHECK(map.size() == 3);
}

TEST(reuse_map_keeps_nothing_beyond_its_slots_nor_what_may_change) {
  ReuseMap map(2);
  const Decided full(map, 0, {1, 2, 3}, 4, 0.0);
  CHECK(full.counts.num_stored == 2 && full.counts.num_computed == 3);
  CHECK((full.slot == std::vector<int64_t>{0, 1, -1}));
  const Decided unsettled(map, 1, {1, 8}, 4, 0.0, false);
  CHECK(unsettled.counts.num_stored == 0 && unsettled.counts.num_computed == 2);
  map.clear();
  CHECK(map.size() == 0 && Decided(map, 2, {1}, 4, 0.0).counts.num_computed == 1);
}

TEST(reuse_map_forgets_inserted_rows_as_old_as_they_are_said_to_be) {
  ReuseMap map(5);
  Decided(map, 0, {1}, 3, 0.0);
  Decided(map, 2, {2}, 3, 0.0);
  const std::vector<node_t> node = {2, 7, 8};
  const std::vector<tick_t> t(3, 5);
  std::vector<int64_t> slot(3);
  map.insert(1, 1, {3, node.data(), t.data()}, slot.data());  // forgets 1, whose slot is the first free one
  CHECK((slot == std::vector<int64_t>{-1, 0, 2}) && map.size() == 3);
  const Decided fourth(map, 4, {2, 7, 8}, 3, 0.0);
  CHECK(fourth.counts.num_computed == 0 && fourth.counts.largest_lag == 3);
  const Decided fifth(map, 5, {2, 7}, 3, 0.0);  // 7 is of batch 1: too old, where 2 is not
  CHECK(fifth.counts.num_computed == 1 && (fifth.order == std::vector<int64_t>{1, 0}));
}

TEST(reuse_map_inserts_into_an_empty_ring_and_up_to_its_slots) {
  ReuseMap map(2);
  const std::vector<node_t> node = {1, 2, 3};
  const std::vector<tick_t> t(3, 5);
  std::vector<int64_t> slot(3);
  map.insert(4, 0, {3, node.data(), t.data()}, slot.data());
  CHECK((slot == std::vector<int64_t>{0, 1, -1}));
  CHECK(Decided(map, 5, {1, 2}, 2, 0.0).counts.num_computed == 0);
  CHECK(Decided(map, 7, {1, 2}, 2, 0.0).counts.num_computed == 2);
}

}  // namespace
}  // namespace tgflow
