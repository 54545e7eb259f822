// Dropout by key: the same elements on every device, at any number of threads.
#pragma once

#include <cstdint>

namespace tgflow {

/// Fills `out`, [num_rows, row_size], with 0 at a share of `rate` and 1 / (1 - rate) elsewhere; 0 <= rate
/// < 1. An element's draw depends on its row and its place there, not on how many there are.
void keep_factors(uint64_t key, double rate, int64_t num_rows, int64_t row_size, float* out);

/// `out` becomes keep * gelu(x) and `x` its slope, keep * gelu'(x); both [size]. gelu(x) is x times the
/// normal distribution function of x, to 2e-7 of max(|x|, 1). `keep` is drawn as row 0 of `keep_factors` at
/// `rate`.
void gelu_dropout(uint64_t key, double rate, int64_t size, float* x, float* out);

}  // namespace tgflow
