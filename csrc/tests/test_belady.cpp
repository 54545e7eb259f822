#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "tgflow/belady.hpp"

namespace tgflow {
namespace {

struct Window {
  std::vector<int64_t> id;
  std::vector<int64_t> offset{0};
};

Window made_window(std::mt19937_64& random, int64_t num_batches, int64_t num_ids) {
  Window out;
  for (int64_t b = 0; b < num_batches; ++b) {
    std::vector<int64_t> batch;
    for (uint64_t i = random() % 40; i > 0; --i)
      batch.push_back(static_cast<int64_t>(random()) & (num_ids - 1));
    std::sort(batch.begin(), batch.end());
    batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
    std::shuffle(batch.begin(), batch.end(), random);
    out.id.insert(out.id.end(), batch.begin(), batch.end());
    out.offset.push_back(static_cast<int64_t>(out.id.size()));
  }
  return out;
}

Accesses view(const Window& w) {
  return {w.id.data(), w.offset.data(), static_cast<int64_t>(w.offset.size()) - 1};
}

/// Makes the moves of a window on `held`, and checks that they are right.
void execute(const Window& w, const std::vector<int32_t>& hit, const std::vector<int32_t>& admit,
             std::vector<int64_t>& held) {
  for (std::size_t b = 0; b + 1 < w.offset.size(); ++b) {
    const auto begin = static_cast<std::size_t>(w.offset[b]), end = static_cast<std::size_t>(w.offset[b + 1]);
    for (std::size_t i = begin; i < end; ++i) {
      const auto found = std::find(held.begin(), held.end(), w.id[i]);
      CHECK((hit[i] >= 0) == (found != held.end()));
      CHECK(hit[i] < 0 || (found - held.begin() == hit[i] && admit[i] < 0));
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (admit[i] >= 0) held[static_cast<std::size_t>(admit[i])] = w.id[i];
    }
  }
}

TEST(moves_can_be_made_window_after_window) {
  std::mt19937_64 random(3);
  for (const int64_t num_slots : {0, 1, 7, 64, 300}) {
    Belady planner(num_slots);
    std::vector<int64_t> held(static_cast<std::size_t>(num_slots), -1), planned(held);
    for (const int64_t num_batches : {1, 200, 0, 63, 64, 65, 3}) {
      const Window w = made_window(random, num_batches, 256);
      std::vector<int32_t> hit(w.id.size()), admit(w.id.size());
      planner.plan(view(w), {hit.data(), admit.data()});
      execute(w, hit, admit, held);
      planner.contents(planned.data());
      CHECK(planned == held);
    }
  }
}

TEST(a_planner_refuses_what_it_cannot_number) {
  CHECK(message_of([] { Belady(int64_t{1} << 30); }) ==
        "a cache must have 0 to 2^30 - 1 slots, got 1073741824");
  const std::vector<int64_t> offset{0, int64_t{1} << 30};
  CHECK(message_of([&] { Belady(1).plan({nullptr, offset.data(), 1}, {nullptr, nullptr}); }) ==
        "a window must have fewer than 2^30 accesses and batches, got 1073741824 and 1");
}

}  // namespace
}  // namespace tgflow
