// Loops over floats that compilers turn into vector code, compiled once for AVX2 where the machine has it.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#define TGFLOW_HAS_AVX2() (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define TGFLOW_AVX2 __attribute__((target("avx2,fma")))
#else
#define TGFLOW_HAS_AVX2() false
#define TGFLOW_AVX2
#endif

#if defined(__GNUC__)
#define TGFLOW_INLINE inline __attribute__((always_inline))
#else
#define TGFLOW_INLINE inline
#endif

namespace tgflow {
namespace simd {

/// Sum of a[i] * b[i], over 32 lanes that are added up at the end.
TGFLOW_INLINE float dot(const float* __restrict a, const float* __restrict b, int64_t size) {
  constexpr int64_t kLanes = 32;
  float lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (; i + 8 <= size; i += 8) {
    for (int64_t l = 0; l < 8; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (int64_t l = 0; i < size; ++i, ++l) lane[l] += a[i] * b[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

/// y += a * x.
TGFLOW_INLINE void add_scaled(float* __restrict y, float a, const float* __restrict x, int64_t size) {
  for (int64_t i = 0; i < size; ++i) y[i] += a * x[i];
}

/// The phase w * dt + b in float32, rounded after the product as torch does, brought to [-pi / 2, pi / 2]
/// by whole turns and then halved. Exact to float32 for any float32 phase: turns are counted in double.
TGFLOW_INLINE float half_angle(float w, float dt, float b) {
  constexpr double kTurn = 6.283185307179586;
  constexpr double kRound = 6755399441055744.0;  // adding and taking it away rounds to an integer
  const double phase = static_cast<float>(static_cast<double>(w) * dt) + b;
  const double turns = (phase * (1 / kTurn) + kRound) - kRound;
  return static_cast<float>((phase - turns * kTurn) * 0.5);
}

// Taylor's series to the last term that float32 sees on [-pi / 2, pi / 2].
TGFLOW_INLINE float short_sin(float x) {
  const float y = x * x;
  float p = -2.5052108e-8f;
  p = p * y + 2.7557319e-6f;
  p = p * y - 1.9841270e-4f;
  p = p * y + 8.3333333e-3f;
  p = p * y - 1.6666667e-1f;
  return x + x * y * p;
}

TGFLOW_INLINE float short_cos(float x) {
  const float y = x * x;
  float p = 2.0876757e-9f;
  p = p * y - 2.7557319e-7f;
  p = p * y + 2.4801587e-5f;
  p = p * y - 1.3888889e-3f;
  p = p * y + 4.1666667e-2f;
  p = p * y - 0.5f;
  return 1 + y * p;
}

/// out[i] = cos(w[i] * dt + b[i]).
TGFLOW_INLINE void cosines(float* __restrict out, const float* __restrict w, float dt,
                           const float* __restrict b, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const float s = short_sin(half_angle(w[i], dt, b[i]));
    out[i] = 1 - 2 * s * s;
  }
}

/// The same, and the sines.
TGFLOW_INLINE void cosines_and_sines(float* __restrict cosine, float* __restrict sine,
                                     const float* __restrict w, float dt, const float* __restrict b,
                                     int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const float half = half_angle(w[i], dt, b[i]);
    const float s = short_sin(half);
    cosine[i] = 1 - 2 * s * s;
    sine[i] = 2 * s * short_cos(half);
  }
}

}  // namespace simd
}  // namespace tgflow
