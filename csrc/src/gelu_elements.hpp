// GELU and its slope, as a loop that compilers turn into vector code.
#pragma once

#include "tgflow/detail/simd.hpp"

namespace tgflow {

/// `out` becomes factor * gelu(x) and `x` factor * gelu'(x): by formula 7.1.26 of Abramowitz and Stegun for
/// the normal distribution's tail, whose factor exp(-x^2 / 2) is the density's too.
TGFLOW_INLINE void gelu_elements(const float* factor, int64_t size, float* __restrict x,
                                 float* __restrict out) {
  for (int64_t i = 0; i < size; ++i) {
    const float v = x[i], e = simd::exp(-0.5f * v * v);
    const float t = 1 / (1 + 0.23164190f * (v < 0 ? -v : v));
    float tail = 0.530702715f;
    tail = tail * t - 0.726576013f;
    tail = tail * t + 0.710706871f;
    tail = tail * t - 0.142248368f;
    tail = tail * t + 0.127414796f;
    tail = tail * t * e;
    const float below = v < 0 ? tail : 1 - tail;
    out[i] = factor[i] * (v * below);
    x[i] = factor[i] * (below + v * (0.398942280f * e));
  }
}

}  // namespace tgflow
