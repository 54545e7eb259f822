#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "check.hpp"
#include "tgflow/belady.hpp"

namespace tgflow {
namespace {

using Batch = std::vector<int64_t>;

Batch made_batch(std::mt19937_64& random, int64_t num_ids) {
  Batch batch;
  for (uint64_t i = random() % 40; i > 0; --i)
    batch.push_back(static_cast<int64_t>(random()) & (num_ids - 1));
  std::sort(batch.begin(), batch.end());
  batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
  std::shuffle(batch.begin(), batch.end(), random);
  return batch;
}

/// Plans the next batch, makes its moves on `held`, and checks that they are right. Returns its ids.
Batch execute_next(Belady& planner, std::vector<int64_t>& held) {
  const auto size = static_cast<std::size_t>(planner.next_size());
  Batch id(size);
  std::vector<int32_t> hit(size), admit(size);
  planner.plan_next({id.data(), hit.data(), admit.data()});
  for (std::size_t i = 0; i < size; ++i) {
    const auto found = std::find(held.begin(), held.end(), id[i]);
    CHECK((hit[i] >= 0) == (found != held.end()));
    CHECK(hit[i] < 0 || (found - held.begin() == hit[i] && admit[i] < 0));
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (admit[i] >= 0) held[static_cast<std::size_t>(admit[i])] = id[i];
  }
  Batch planned(held.size());
  planner.contents(planned.data());
  CHECK(planned == held);
  return id;
}

TEST(moves_can_be_made_however_far_it_is_told_ahead) {
  std::mt19937_64 random(3);
  for (const int64_t num_slots : {0, 1, 7, 64, 300}) {
    Belady planner(num_slots);
    std::vector<int64_t> held(static_cast<std::size_t>(num_slots), -1);
    std::deque<Batch> observed;
    for (const std::size_t ahead : {1, 200, 0, 63, 64, 65, 1, 700, 0}) {
      while (observed.size() < ahead) {
        observed.push_back(made_batch(random, 256));
        planner.observe(observed.back().data(), static_cast<int64_t>(observed.back().size()));
      }
      for (; observed.size() > ahead; observed.pop_front())
        CHECK(execute_next(planner, held) == observed.front());
    }
    CHECK(planner.num_accesses() == 0);
  }
}

TEST(a_planner_refuses_what_it_cannot_number) {
  CHECK(message_of([] { Belady(int64_t{1} << 30); }) ==
        "a cache must have 0 to 2^30 - 1 slots, got 1073741824");
  CHECK(message_of([] { Belady(1).observe(nullptr, int64_t{1} << 30); }) ==
        "fewer than 2^30 accesses can wait to be planned, got 1073741824");
}

}  // namespace
}  // namespace tgflow
