#include <atomic>
#include <thread>

#include "check.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kSize = 1000;

TEST(a_thread_that_stays_alone_does_all_of_a_call_in_one_piece) {
  set_num_threads(3);
  int64_t num_ranges = 0;
  bool is_own = true;
  std::thread thread([&] {
    stay_alone();
    const auto self = std::this_thread::get_id();
    parallel_for(kSize, 1, [&](int64_t begin, int64_t end) {
      ++num_ranges;
      is_own = is_own && std::this_thread::get_id() == self && begin == 0 && end == kSize;
    });
  });
  thread.join();
  CHECK(num_ranges == 1 && is_own);
}

TEST(other_threads_share_their_calls_as_ever) {
  set_num_threads(3);
  std::thread([] { stay_alone(); }).join();
  std::atomic<int64_t> num_ranges{0};
  std::atomic<int64_t> num_items{0};
  parallel_for(kSize, 1, [&](int64_t begin, int64_t end) {
    ++num_ranges;
    num_items += end - begin;
  });
  CHECK(num_ranges > 1 && num_items == kSize);
}

}  // namespace
}  // namespace tgflow
