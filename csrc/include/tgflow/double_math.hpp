// exp, log1p and decay of many doubles at once.
#pragma once

#include <cstdint>

namespace tgflow {

// Each writes a function of each value to `out`, which may be `values`: with AVX2 the bits of glibc 2.36,
// whose `exp` and `log1p` fuse products there, and otherwise those of the library.
void exp_all(const double* values, int64_t size, double* out);
void log1p_all(const double* values, int64_t size, double* out);
/// 1/2 to the power of each age over the half-life.
void decay_all(const double* ages, int64_t size, double half_life, double* out);

}  // namespace tgflow
