#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tgflow/frontier.hpp"
#include "tgflow/pair_index.hpp"
#include "tgflow/random.hpp"
#include "tgflow/replay.hpp"

namespace tgflow {
namespace {

bool same(const Random4& r, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return r.word[0] == a && r.word[1] == b && r.word[2] == c && r.word[3] == d;
}

TEST(philox_gives_the_known_answers_of_random123) {
  CHECK(same(philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  CHECK(same(philox(~0ULL, ~0ULL, ~0ULL), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  CHECK(same(philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL, 0x85a308d3243f6a88ULL), 0xd16cfe09,
             0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(multiply_high_is_the_high_half) {
  CHECK(multiply_high(~0ULL, ~0ULL) == ~0ULL - 1);
  CHECK(multiply_high(1ULL << 63, 6) == 3);
  CHECK(multiply_high(0xfedcba9876543210ULL, 0xf123456789abcdefULL) == 0xf010e8ef9c66c631ULL);
  CHECK(multiply_high(~0ULL, 1) == 0);
}

TEST(draws_stay_in_range) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const int64_t below = random_below(7, i, 0, 5);
    const double unit = random_unit(7, i, 1);
    CHECK(below >= 0 && below < 5 && unit >= 0 && unit < 1);
  }
  CHECK(random_below(7, 0, 0, 1) == 0);
}

TEST(pairs_drawn_while_others_are_appended_are_of_the_prefix) {
  constexpr int64_t kEvents = 20000;
  constexpr int64_t kCut = 100;
  std::vector<node_t> src(kEvents), dst(kEvents);
  for (int64_t i = 0; i < kEvents; ++i) {
    src[static_cast<std::size_t>(i)] = i;
    dst[static_cast<std::size_t>(i)] = kEvents + i;
  }
  PairIndex index;
  index.append(src.data(), dst.data(), kCut);
  const std::vector<eid_t> cut(50, kCut);
  const PairIndex::Request request{3, src.data() + kCut, dst.data() + kCut, cut.data(), 50, 2, kCut, 10};
  std::vector<node_t> first_src(100), first_dst(100);
  CHECK(index.draw_pairs(request, first_src.data(), first_dst.data()) == 0);
  std::atomic<bool> done{false};
  std::thread appender([&] {
    for (int64_t i = kCut; i < kEvents; i += 100) index.append(src.data() + i, dst.data() + i, 100);
    done = true;
  });
  bool all_same = true;
  do {
    std::vector<node_t> out_src(100), out_dst(100);
    index.draw_pairs(request, out_src.data(), out_dst.data());
    all_same = all_same && out_src == first_src && out_dst == first_dst;
  } while (!done);
  appender.join();
  CHECK(all_same);
  CHECK(index.size() == kEvents && index.num_pairs(kCut) == kCut &&
        index.num_destinations(kEvents) == kEvents);
}

TEST(the_destinations_of_a_source_are_those_of_its_events_before_a_position) {
  const std::vector<node_t> src{5, 2, 5, 5, 5}, dst{7, 7, 9, 7, 1};
  PairIndex index;
  index.append(src.data(), dst.data(), 3);
  CHECK(index.num_destinations_of(5, 1) == 1 && index.num_destinations_of(6, 3) == 0);
  index.append(src.data() + 3, dst.data() + 3, 2);
  std::vector<node_t> met(3);
  CHECK(index.num_destinations_of(5, 5) == 3 && index.num_destinations_of(5, 4) == 2);
  index.destinations_of(5, 5, met.data());
  CHECK(met == std::vector<node_t>({7, 9, 1}));
  CHECK(index.num_destinations_of(2, 1) == 0 && index.num_destinations_of(1'000'000'000, 5) == 0);
}

TEST(a_log_of_one_node_has_no_negative) {
  const node_t node = 4;
  const eid_t cut = 0;
  PairIndex index;
  index.append(&node, &node, 1);
  node_t out = 0;
  const std::string message =
      message_of([&] { index.draw_destinations({0, &node, &node, &cut, 1, 1, 1}, &out); });
  CHECK(message.find("4 -> 4 has no negative") != std::string::npos);
}

TEST(a_frontier_spans_all_of_time) {
  const node_t node = 3, neighbor = 5;
  const tick_t late = std::numeric_limits<int64_t>::max(), early = std::numeric_limits<int64_t>::min();
  const int64_t position = 0;
  std::vector<node_t> nodes(2);
  std::vector<tick_t> t(2);
  std::vector<int64_t> positions(2);
  int64_t target = -1, row = -1;
  bool mask = false;
  float dt = 0;
  RowIndex index;
  const int64_t size =
      expand_frontier({&node, &late, &position, 1}, {&neighbor, &early, 1}, 0.5,
                      {nodes.data(), t.data(), positions.data()}, {&target, &row, &mask, &dt}, index);
  CHECK(size == 2 && target == 0 && row == 1 && mask);
  CHECK(dt == std::ldexp(1.0F, 63));
  CHECK(nodes[1] == 5 && t[1] == early);
}

TEST(nothing_has_no_frontier) {
  RowIndex index;
  CHECK(unique_queries({nullptr, nullptr, nullptr, 0}, {nullptr, nullptr, nullptr}, nullptr, index) == 0);
  eid_t out = 7;
  CHECK(unique_events({}, &out, index) == std::vector<int64_t>{1} && out == kNoEvent);
}

TEST(replay_draws_the_whole_window_when_it_is_asked_for) {
  for (const double half_life : {1e-6, 1.0, 1e300, std::numeric_limits<double>::infinity()}) {
    std::vector<eid_t> out(300);
    CHECK(draw_replay({100, 350, half_life}, 5, 300, out.data()) == 250);
    for (int64_t i = 0; i < 250; ++i) CHECK(out[static_cast<std::size_t>(i)] == 100 + i);
  }
}

}  // namespace
}  // namespace tgflow
