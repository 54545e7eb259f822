// GELU and the dropout behind it, in one pass that leaves what the way back needs.
#pragma once

#include <cstdint>

namespace tgflow {

/// `out` becomes keep * gelu(x) and `x` its slope, keep * gelu'(x); both [size]. gelu(x) is x times the
/// normal distribution function of x, to 2e-7 of max(|x|, 1). `keep` is drawn as row 0 of `keep_factors` at
/// `rate`.
void gelu_dropout(uint64_t key, double rate, int64_t size, float* x, float* out);

}  // namespace tgflow
