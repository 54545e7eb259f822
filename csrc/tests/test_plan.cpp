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

TEST(pairs_drawn_while_others_are_appended_are_of_the_prefix) {
  constexpr int64_t kEvents = 20000;
  constexpr int64_t kCut = 100;
  std::vector<node_t> src(kEvents), dst(kEvents);
  for (int64_t i = 0; i < kEvents; ++i) {
    src[static_cast<std::size_t>(i)] = i;
    dst[static_cast<std::size_t>(i)] = kEvents + i;
  }
  const std::vector<tick_t> t(kEvents);
  EventLog log;
  PairIndex index(&log);
  const auto append = [&](int64_t begin) {
    log.append({src.data() + begin, dst.data() + begin, t.data(), nullptr, kCut});
    index.append(src.data() + begin, dst.data() + begin, nullptr, kCut);
    index.read_pairs(begin + kCut);
  };
  append(0);
  const std::vector<eid_t> cut(50, kCut);
  const PairIndex::Request request{3, src.data() + kCut, dst.data() + kCut, cut.data(), 50, 2, kCut, 10};
  std::vector<node_t> first_src(100), first_dst(100);
  CHECK(index.draw_pairs(request, first_src.data(), first_dst.data()) == 0);
  std::atomic<bool> done{false};
  std::thread appender([&] {
    for (int64_t i = kCut; i < kEvents; i += kCut) append(i);
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

}  // namespace
}  // namespace tgflow
