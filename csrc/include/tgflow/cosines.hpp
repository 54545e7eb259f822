// Time differences as vectors of cosines.
#pragma once

#include <cstdint>

namespace tgflow {

/// Row r of `out`, [size, dim], becomes cos(dt[r] * w): to float32's precision for any phase, by `cosine`.
void cosines(int64_t size, int64_t dim, const float* dt, const float* w, float* out);

}  // namespace tgflow
