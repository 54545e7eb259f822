// Loops over floats that g++ and clang++ vectorize, compiled for each instruction level that
// the machine may have (tgflow/simd_level.hpp).
#pragma once

#include <cstdint>

#include "tgflow/detail/cosine.hpp"
#include "tgflow/simd_level.hpp"

#if defined(__x86_64__)
#define TGFLOW_HAS_AVX2() (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define TGFLOW_AVX2 __attribute__((target("avx2,fma")))
#else
#define TGFLOW_HAS_AVX2() false
#define TGFLOW_AVX2
#endif

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 12)  // which support halves of vectors
#define TGFLOW_WIDE 1
#define TGFLOW_HAS_AVX512()                                                                        \
  (TGFLOW_HAS_AVX2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && \
   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&                     \
   __builtin_cpu_supports("avx512vbmi2"))
#define TGFLOW_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TGFLOW_HAS_AVX512() false
#define TGFLOW_AVX512
#endif

#define TGFLOW_INLINE inline __attribute__((always_inline))

namespace tgflow {
namespace simd {

typedef float float4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float float8 __attribute__((vector_size(32), aligned(4), may_alias));

/// Vectors of a loop by their lanes: types, as templates drop the attributes of vectors.
struct Four {
  typedef float4 Vector;
  static constexpr int64_t kLanes = 4;
};
struct Eight {
  typedef float8 Vector;
  static constexpr int64_t kLanes = 8;
};
#if defined(TGFLOW_WIDE)
typedef float float16 __attribute__((vector_size(64), aligned(4), may_alias));
struct Sixteen {
  typedef float16 Vector;
  static constexpr int64_t kLanes = 16;
};
#else
using Sixteen = Eight;
#endif

/// Compilation targets of a loop, used by `run`: its widest vectors.
struct Baseline : Eight {};
struct Avx2 : Eight {};
struct Avx512 : Sixteen {};

template <typename Lanes>
TGFLOW_INLINE const typename Lanes::Vector& vector_at(const float* p) {
  return *reinterpret_cast<const typename Lanes::Vector*>(p);
}

TGFLOW_INLINE const float8& eight_at(const float* p) { return vector_at<Eight>(p); }

template <typename Loop, typename... Args>
void run_baseline(Args&... args) {
  Loop::template run<Baseline>(args...);
}

template <typename Loop, typename... Args>
TGFLOW_AVX2 void run_avx2(Args&... args) {
  Loop::template run<Avx2>(args...);
}

template <typename Loop, typename... Args>
TGFLOW_AVX512 void run_avx512(Args&... args) {
  Loop::template run<Avx512>(args...);
}

/// Calls `Loop::run<Level>(args...)` as compiled for a level that the machine supports. It must be
/// `TGFLOW_INLINE`, and so must all that it calls in loops.
template <typename Loop, typename... Args>
void run_at(SimdLevel level, Args&&... args) {
  switch (level) {
    case SimdLevel::kAvx512:
      return run_avx512<Loop>(args...);
    case SimdLevel::kAvx2:
      return run_avx2<Loop>(args...);
    case SimdLevel::kBaseline:
      return run_baseline<Loop>(args...);
  }
}

/// The same for the level in use.
template <typename Loop, typename... Args>
void run(Args&&... args) {
  run_at<Loop>(simd_level(), args...);
}

/// Prefetches the cache lines of a row.
TGFLOW_INLINE void prefetch(const float* row, int64_t size) {
  for (int64_t i = 0; i < size; i += 16) __builtin_prefetch(row + i);
}

/// The sum of the lanes.
TGFLOW_INLINE float sum_of(const float8& x) {
#if defined(TGFLOW_WIDE)  // the same sums, in parallel
  const float4 halves = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
  const float4 pairs = halves + __builtin_shufflevector(halves, halves, 2, 3, 0, 1);
  return pairs[0] + pairs[1];
#else
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
#endif
}

/// Splits 32 parallel sums into those of eight lanes each.
TGFLOW_INLINE void split(const float8 (&sum)[4], float8 (&part)[4]) {
  for (int v = 0; v < 4; ++v) part[v] = sum[v];
}
#if defined(TGFLOW_WIDE)
TGFLOW_INLINE void split(const float16 (&sum)[2], float8 (&part)[4]) {
  for (int v = 0; v < 2; ++v) {
    part[2 * v] = __builtin_shufflevector(sum[v], sum[v], 0, 1, 2, 3, 4, 5, 6, 7);
    part[2 * v + 1] = __builtin_shufflevector(sum[v], sum[v], 8, 9, 10, 11, 12, 13, 14, 15);
  }
}
#endif

/// out[r * kColumns + c] is the sum of a[r][i] * b[c][i]: in 32 partial sums of indices equal modulo 32,
/// so that the order is the same for any vector width. Several products at a time share loads.
template <typename Level, int kRows, int kColumns>
TGFLOW_INLINE void dots(const float* const* a, const float* const* b, int64_t size, float* out) {
  using Vector = typename Level::Vector;
  constexpr int kLanes = Level::kLanes, kVectors = 32 / kLanes;
  Vector sum[kRows][kColumns][kVectors] = {};
  int64_t i = 0;
  for (; i + 32 <= size; i += 32) {
    for (int v = 0; v < kVectors; ++v) {
      for (int r = 0; r < kRows; ++r) {
        const Vector left = vector_at<Level>(a[r] + i + kLanes * v);
        for (int c = 0; c < kColumns; ++c) {
          sum[r][c][v] += left * vector_at<Level>(b[c] + i + kLanes * v);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      float8 part[4];
      split(sum[r][c], part);
      int64_t j = i;
      for (; j + 8 <= size; j += 8) part[0] += eight_at(a[r] + j) * eight_at(b[c] + j);
      part[0] = (part[0] + part[1]) + (part[2] + part[3]);
      float total = sum_of(part[0]);
      for (; j < size; ++j) total += a[r][j] * b[c][j];
      out[r * kColumns + c] = total;
    }
  }
}

template <typename Level>
TGFLOW_INLINE float dot(const float* a, const float* b, int64_t size) {
  float out;
  dots<Level, 1, 1>(&a, &b, size, &out);
  return out;
}

/// Adds to some vectors of each out[o] the sum of scale[o][r] * rows[r] over `num_rows` rows, from `i` on.
template <typename Lanes, int kOuts, int kVectors>
TGFLOW_INLINE void add_columns(float* const* out, const float* const* rows, const float* const* scale,
                               int64_t num_rows, int64_t i) {
  using Vector = typename Lanes::Vector;
  constexpr int64_t kLanes = Lanes::kLanes;
  Vector sum[kOuts][kVectors];
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kVectors; ++v) sum[o][v] = vector_at<Lanes>(out[o] + i + kLanes * v);
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector row = vector_at<Lanes>(rows[r] + i + kLanes * v);
      for (int o = 0; o < kOuts; ++o) sum[o][v] += scale[o][r] * row;
    }
  }
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Vector*>(out[o] + i + kLanes * v) = sum[o][v];
  }
}

/// Each out[o] += the sum of scale[o][r] * rows[r], with the columns in registers.
template <typename Level, int kOuts>
TGFLOW_INLINE void add_rows(float* const* out, const float* const* rows, const float* const* scale,
                            int64_t num_rows, int64_t size) {
  constexpr int64_t kLanes = Level::kLanes;
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    add_columns<Level, kOuts, 4>(out, rows, scale, num_rows, i);
  }
  for (; i + kLanes <= size; i += kLanes) add_columns<Level, kOuts, 1>(out, rows, scale, num_rows, i);
  for (; i + 8 <= size; i += 8) add_columns<Eight, kOuts, 1>(out, rows, scale, num_rows, i);
  for (; i + 4 <= size; i += 4) add_columns<Four, kOuts, 1>(out, rows, scale, num_rows, i);
  for (; i < size; ++i) {
    for (int o = 0; o < kOuts; ++o) {
      float sum = out[o][i];
      for (int64_t r = 0; r < num_rows; ++r) sum += scale[o][r] * rows[r][i];
      out[o][i] = sum;
    }
  }
}

/// out[i] = cos(w[i] * dt).
TGFLOW_INLINE void cosines(float* __restrict out, const float* __restrict w, float dt, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = cosine(w[i], dt);
}

/// exp(x) to float32's precision for |x| < 87; beyond, exp(+-87).
TGFLOW_INLINE float exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  constexpr float kRound = 12582912.0f;  // adding and subtracting it rounds to an integer
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

}  // namespace simd
}  // namespace tgflow
