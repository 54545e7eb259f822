#include <cstdint>

#include "check.hpp"
#include "tgflow/random.hpp"

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

}  // namespace
}  // namespace tgflow
