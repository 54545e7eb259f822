#include "tgflow/simd_level.hpp"

#include <atomic>
#include <stdexcept>

#include "tgflow/detail/simd.hpp"

namespace tgflow {
namespace {

std::vector<SimdLevel> found_levels() {
  std::vector<SimdLevel> levels{SimdLevel::kBaseline};
  if (TGFLOW_HAS_AVX2()) levels.push_back(SimdLevel::kAvx2);
  if (TGFLOW_HAS_AVX512()) levels.push_back(SimdLevel::kAvx512);
  return levels;
}

std::atomic<SimdLevel>& level_in_use() {
  static std::atomic<SimdLevel> level{simd_levels().back()};
  return level;
}

}  // namespace

const std::vector<SimdLevel>& simd_levels() {
  static const std::vector<SimdLevel> levels = found_levels();
  return levels;
}

SimdLevel simd_level() { return level_in_use().load(std::memory_order_relaxed); }

std::string name_of(SimdLevel level) {
  switch (level) {
    case SimdLevel::kBaseline:
      return "baseline";
    case SimdLevel::kAvx2:
      return "AVX2";
    case SimdLevel::kAvx512:
      return "AVX-512";
  }
  return {};
}

void set_simd_level(const std::string& name) {
  std::string known;
  for (const SimdLevel level : simd_levels()) {
    if (name_of(level) == name) {
      level_in_use() = level;
      return;
    }
    known += (known.empty() ? "" : ", ") + name_of(level);
  }
  throw std::invalid_argument("this machine has the levels " + known + ", got " + name);
}

}  // namespace tgflow
