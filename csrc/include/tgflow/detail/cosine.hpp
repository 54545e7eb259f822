// The cosine of a time difference, the same function on the CPU and on a GPU. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

#define TGFLOW_HD_INLINE TGFLOW_HD inline __attribute__((always_inline))

namespace tgflow {

/// The phase w * dt in float32, rounded as in torch, reduced to [-pi / 2, pi / 2] by whole turns and then
/// halved. Exact to float32 for any float32 phase: turns are counted in double.
TGFLOW_HD_INLINE float half_angle(float w, float dt) {
  constexpr double kTurn = 6.283185307179586;
  constexpr double kRound = 6755399441055744.0;  // adding and subtracting it rounds to an integer
  const double phase = w * dt;
  const double turns = (phase * (1 / kTurn) + kRound) - kRound;
  return static_cast<float>((phase - turns * kTurn) * 0.5);
}

/// Taylor's series to the last term significant in float32 on [-pi / 2, pi / 2].
TGFLOW_HD_INLINE float short_sin(float x) {
  const float y = x * x;
  float p = -2.5052108e-8f;
  p = p * y + 2.7557319e-6f;
  p = p * y - 1.9841270e-4f;
  p = p * y + 8.3333333e-3f;
  p = p * y - 1.6666667e-1f;
  return x + x * y * p;
}

/// cos(w * dt).
TGFLOW_HD_INLINE float cosine(float w, float dt) {
  const float s = short_sin(half_angle(w, dt));
  return 1 - 2 * s * s;
}

}  // namespace tgflow
