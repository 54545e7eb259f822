// Vector instructions of the core's loops over floats: the best that the machine supports.
#pragma once

#include <string>
#include <vector>

namespace tgflow {

/// Instruction levels of compiled loops, lowest first. AVX-512 requires VBMI2: older machines lower their
/// clock for wide vectors. Sums have one order at all levels, so AVX2 and AVX-512 give the same bits;
/// below them products are rounded before they are added, and the last bits differ.
enum class SimdLevel { kBaseline, kAvx2, kAvx512 };

/// The levels supported by the machine and the compiler, lowest first.
const std::vector<SimdLevel>& simd_levels();

/// The level of loops that start from now on: the highest, unless set otherwise.
SimdLevel simd_level();

/// "baseline", "AVX2" or "AVX-512".
std::string name_of(SimdLevel level);

/// Sets the level by its name. Throws std::invalid_argument if the machine does not support it.
void set_simd_level(const std::string& name);

}  // namespace tgflow
