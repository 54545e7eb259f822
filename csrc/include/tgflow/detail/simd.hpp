// Loops over floats that g++ and clang++ turn into vector code, compiled once for AVX2 where the machine has
// it.
#pragma once

#include <cstdint>

#include "tgflow/detail/cosine.hpp"

#if defined(__x86_64__)
#define TGFLOW_HAS_AVX2() (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define TGFLOW_AVX2 __attribute__((target("avx2,fma")))
#else
#define TGFLOW_HAS_AVX2() false
#define TGFLOW_AVX2
#endif

#define TGFLOW_INLINE inline __attribute__((always_inline))

namespace tgflow {
namespace simd {

typedef float float8 __attribute__((vector_size(32), aligned(4), may_alias));

TGFLOW_INLINE const float8& eight_at(const float* p) { return *reinterpret_cast<const float8*>(p); }

/// Asks for the cache lines of a row.
TGFLOW_INLINE void prefetch(const float* row, int64_t size) {
  for (int64_t i = 0; i < size; i += 16) __builtin_prefetch(row + i);
}

/// Sum of a[i] * b[i], in four vectors of partial sums that are added up at the end.
TGFLOW_INLINE float dot(const float* a, const float* b, int64_t size) {
  float8 s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t i = 0;
  for (; i + 32 <= size; i += 32) {
    s0 += eight_at(a + i) * eight_at(b + i);
    s1 += eight_at(a + i + 8) * eight_at(b + i + 8);
    s2 += eight_at(a + i + 16) * eight_at(b + i + 16);
    s3 += eight_at(a + i + 24) * eight_at(b + i + 24);
  }
  for (; i + 8 <= size; i += 8) s0 += eight_at(a + i) * eight_at(b + i);
  s0 = (s0 + s1) + (s2 + s3);
  float sum = ((s0[0] + s0[4]) + (s0[2] + s0[6])) + ((s0[1] + s0[5]) + (s0[3] + s0[7]));
  for (; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

/// One vector, or four, of out += the sum of scale[r] * rows[r] over `num_rows` rows, from column `i` on.
template <int kVectors>
TGFLOW_INLINE void add_columns(float* out, const float* const* rows, const float* scale, int64_t num_rows,
                               int64_t i) {
  float8 sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = eight_at(out + i + 8 * v);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[v] += scale[r] * eight_at(rows[r] + i + 8 * v);
  }
  for (int v = 0; v < kVectors; ++v) *reinterpret_cast<float8*>(out + i + 8 * v) = sum[v];
}

/// out += the sum of scale[r] * rows[r], with the columns in registers.
TGFLOW_INLINE void add_rows(float* out, const float* const* rows, const float* scale, int64_t num_rows,
                            int64_t size) {
  int64_t i = 0;
  for (; i + 32 <= size; i += 32) add_columns<4>(out, rows, scale, num_rows, i);
  for (; i + 8 <= size; i += 8) add_columns<1>(out, rows, scale, num_rows, i);
  for (; i < size; ++i) {
    for (int64_t r = 0; r < num_rows; ++r) out[i] += scale[r] * rows[r][i];
  }
}

/// out[i] = cos(w[i] * dt).
TGFLOW_INLINE void cosines(float* __restrict out, const float* __restrict w, float dt, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = cosine(w[i], dt);
}

/// exp(x) to float32's precision for |x| < 87; beyond, what it is there.
TGFLOW_INLINE float exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  constexpr float kRound = 12582912.0f;  // adding and taking it away rounds to an integer
  const float power = (x * 1.44269504f + kRound) - kRound;
  const float rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.3888889e-3f;
  p = p * rest + 8.3333333e-3f;
  p = p * rest + 4.1666667e-2f;
  p = p * rest + 1.6666667e-1f;
  p = p * rest + 0.5f;
  p = p * rest * rest + rest + 1;
  const int32_t bits = (static_cast<int32_t>(power) + 127) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

/// log(1 + max(x, 0)) to float32's precision, for finite x.
TGFLOW_INLINE float log1p_positive(float x) {
  x = x > 0 ? x : 0.0f;
  const float y = 1 + x;
  int32_t bits;
  __builtin_memcpy(&bits, &y, sizeof bits);
  const int32_t power = (bits - 0x3f3504f3) >> 23;  // y = 2^power * m with m in [sqrt(1/2), sqrt(2))
  const int32_t of_m = bits - power * (1 << 23);
  float m;
  __builtin_memcpy(&m, &of_m, sizeof m);
  const float z = m - 1, square = z * z;
  float p = 7.0376836292e-2f;  // of Cephes' logf
  p = p * z - 1.1514610310e-1f;
  p = p * z + 1.1676998740e-1f;
  p = p * z - 1.2420140846e-1f;
  p = p * z + 1.4249322787e-1f;
  p = p * z - 1.6668057665e-1f;
  p = p * z + 2.0000714765e-1f;
  p = p * z - 2.4999993993e-1f;
  p = p * z + 3.3333331174e-1f;
  const float e = static_cast<float>(power);
  const float low = p * z * square - 2.12194440e-4f * e - 0.5f * square;
  return (z + low) + 0.693359375f * e + (x - (y - 1)) / y;  // the last: what 1 + x has lost
}

TGFLOW_INLINE float sigmoid(float x) { return 1 / (1 + exp(-x)); }

TGFLOW_INLINE float tanh(float x) { return 1 - 2 / (1 + exp(2 * x)); }

}  // namespace simd
}  // namespace tgflow
