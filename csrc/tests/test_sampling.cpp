#include <cmath>
#include <random>

#include "check.hpp"
#include "tgflow/detail/sample_row.hpp"

namespace tgflow {
namespace {

/// The number of 2^64 values of `bits` for which the coin is true.
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

}  // namespace
}  // namespace tgflow
