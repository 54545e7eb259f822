#include "tgflow/walk_features.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrainRows = 64;
constexpr int64_t kGrainPairs = 256;
constexpr int64_t kAhead = 4;  // pairs whose rows are asked for while others are multiplied
constexpr int64_t kLane = 8;   // floats of a vector

/// Each row's projections side by side, padded with zeros to whole vectors, and their products.
struct Packed {
  int64_t sides;                 ///< Projections of a row: 1 + hops.
  int64_t width;                 ///< Floats of a projection.
  std::unique_ptr<float[]> x;    ///< [N, sides, width]
  std::unique_ptr<float[]> own;  ///< [N, sides, sides]: products of a row's projections with each other.

  explicit Packed(const WalkRows& rows)
      : sides(1 + rows.hops),
        width((rows.dim + kLane - 1) / kLane * kLane),
        x(new float[static_cast<size_t>(rows.num_rows * sides * width)]),
        own(new float[static_cast<size_t>(rows.num_rows * sides * sides)]) {}

  const float* row(int64_t r) const { return x.get() + r * sides * width; }
};

struct PackRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const WalkRows& rows, Packed& packed, int64_t begin, int64_t end) {
    const int64_t sides = packed.sides, width = packed.width;
    for (int64_t r = begin; r < end; ++r) {
      float* x = packed.x.get() + r * sides * width;
      for (int64_t s = 0; s < sides; ++s) {
        const float* from =
            s == 0 ? rows.base + r * rows.dim : rows.state + (r * rows.hops + s - 1) * rows.dim;
        std::copy_n(from, rows.dim, x + s * width);
        std::fill_n(x + s * width + rows.dim, width - rows.dim, 0.0f);
      }
      float* own = packed.own.get() + r * sides * sides;
      for (int64_t i = 0; i < sides; ++i) {
        for (int64_t j = i; j < sides; ++j)
          own[i * sides + j] = simd::dot<Level>(x + i * width, x + j * width, width);
      }
    }
  }
};

/// The powers 0, 1, ... of what is left of walks of one event.
TGFLOW_INLINE void powers(float decay, int64_t count, float* out) {
  out[0] = 1;
  for (int64_t i = 1; i < count; ++i) out[i] = out[i - 1] * decay;
}

template <typename Level>
TGFLOW_INLINE void multiply_pair(const Packed& packed, const WalkPairs& pairs, int64_t p, float* power,
                                 float* out) {
  const int64_t sides = packed.sides, width = packed.width, a = pairs.a[p], b = pairs.b[p];
  float *of_a = power, *of_b = power + sides;
  powers(pairs.decay_a[p], sides, of_a);
  powers(pairs.decay_b[p], sides, of_b);
  const float *x = packed.row(a), *y = packed.row(b);
  for (int64_t i = 0; i < sides; ++i) {
    const float* own = packed.own.get() + (a * sides + i) * sides;
    for (int64_t j = i; j < sides; ++j) *out++ = own[j] * (of_a[i] * of_a[j]);
    for (int64_t j = 0; j < sides; ++j) {
      *out++ = simd::dot<Level>(x + i * width, y + j * width, width) * (of_a[i] * of_b[j]);
    }
  }
  for (int64_t i = 0; i < sides; ++i) {
    const float* own = packed.own.get() + (b * sides + i) * sides;
    for (int64_t j = i; j < sides; ++j) *out++ = own[j] * (of_b[i] * of_b[j]);
  }
}

struct PairRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const Packed& packed, const WalkPairs& pairs, float* out, int64_t begin,
                                int64_t end) {
    const int64_t size = num_walk_products(packed.sides - 1), row_size = packed.sides * packed.width;
    std::vector<float> power(2 * packed.sides);
    for (int64_t p = begin; p < end; ++p) {
      if (p + kAhead < end && pairs.a[p + kAhead] >= 0) {
        simd::prefetch(packed.row(pairs.a[p + kAhead]), row_size);
      }
      if (pairs.a[p] < 0) {
        std::fill_n(out + p * size, size, 0.0f);
      } else {
        multiply_pair<Level>(packed, pairs, p, power.data(), out + p * size);
      }
    }
    float* products = out + begin * size;
    for (int64_t i = 0; i < (end - begin) * size; ++i) products[i] = simd::log1p_positive(products[i]);
  }
};

}  // namespace

void walk_features(const WalkRows& rows, const WalkPairs& pairs, float* out) {
  if (pairs.num_pairs == 0) return;
  Packed packed(rows);
  parallel_for(rows.num_rows, kGrainRows,
               [&](int64_t begin, int64_t end) { simd::run<PackRange>(rows, packed, begin, end); });
  parallel_for(pairs.num_pairs, kGrainPairs,
               [&](int64_t begin, int64_t end) { simd::run<PairRange>(packed, pairs, out, begin, end); });
}

}  // namespace tgflow
