// Dropout by key: the same elements on every device, at any number of threads.
#pragma once

#include <cstdint>

namespace tgflow {

/// Fills `out`, [num_rows, row_size], with 0 with probability `rate` and 1 / (1 - rate) elsewhere; 0 <= rate
/// < 1. An element's draw depends on its row and its index there, not on the number of elements.
void keep_factors(uint64_t key, double rate, int64_t num_rows, int64_t row_size, float* out);

/// Sets `out` to keep * gelu(x) and `x` to its derivative, keep * gelu'(x); both [size]. gelu(x) is x times
/// the normal distribution function of x, to 2e-7 of max(|x|, 1). `keep` is row 0 of `keep_factors` at
/// `rate`.
void gelu_dropout(uint64_t key, double rate, int64_t size, float* x, float* out);

}  // namespace tgflow
