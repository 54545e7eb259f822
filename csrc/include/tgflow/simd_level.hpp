// Which vector instructions the core's loops over floats use: the best that the machine has.
#pragma once

#include <string>
#include <vector>

namespace tgflow {

/// What loops are compiled for, lowest first. AVX-512 is used with VBMI2 only: older machines lower their
/// clock for wide vectors. Sums are in one order at all levels, and so AVX2 and AVX-512 give the same bits;
/// below them no product is added without being rounded first, and the last bits are others.
enum class SimdLevel { kBaseline, kAvx2, kAvx512 };

/// The levels that the machine and the compiler have, lowest first.
const std::vector<SimdLevel>& simd_levels();

/// The level of loops that start from now on: the highest, unless another was set.
SimdLevel simd_level();

/// "baseline", "AVX2" or "AVX-512".
std::string name_of(SimdLevel level);

/// Sets the level by its name. Throws std::invalid_argument if the machine has none that is called so.
void set_simd_level(const std::string& name);

}  // namespace tgflow
