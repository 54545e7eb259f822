#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "tgflow/double_math.hpp"
#include "tgflow/simd_level.hpp"

namespace tgflow {
namespace {

/// Ages and counts of all magnitudes, and what the loops leave to the library.
std::vector<double> values() {
  std::vector<double> values{0.0, -0.0,  1e-300, 0x1p-21, 0x1p-20, 511,
                             512, 927.5, 1021.5, 1074.5,  1076.5,  1e18};
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    values.push_back(i % 3 == 0 ? static_cast<double>(random() % 5000) : std::exp(unit * 60 - 20));
  }
  return values;
}

/// Equal, but for the last bit where a library rounds differently.
bool is_near(double x, double y) {
  const double most = std::numeric_limits<double>::infinity();
  return x == y || std::nextafter(x, most) == y || std::nextafter(x, -most) == y;
}

TEST(functions_of_doubles_match_the_library_at_each_level) {
  const std::vector<double> x = values();
  std::vector<double> minus = x, out(x.size());
  for (double& each : minus) each = -each;
  const auto size = static_cast<int64_t>(x.size());
  for (const SimdLevel level : simd_levels()) {
    set_simd_level(name_of(level));
    log1p_all(x.data(), size, out.data());
    for (size_t i = 0; i < x.size(); ++i) CHECK(is_near(out[i], std::log1p(x[i])) && !std::signbit(out[i]));
    exp_all(minus.data(), size, out.data());
    for (size_t i = 0; i < x.size(); ++i) CHECK(is_near(out[i], std::exp(-x[i])));
    decay_all(x.data(), size, 3, out.data());
    for (size_t i = 0; i < x.size(); ++i) CHECK(is_near(out[i], std::exp2(-x[i] / 3)));
    double other[] = {-0.5, 1e300, -1, -2};
    log1p_all(other, 4, other);
    CHECK(is_near(other[0], std::log1p(-0.5)) && is_near(other[1], std::log1p(1e300)));
    CHECK(std::isinf(other[2]) && std::isnan(other[3]));
  }
}

}  // namespace
}  // namespace tgflow
