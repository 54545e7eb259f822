// Products of matrices that fit into a core's first cache, with sums in registers.
#pragma once

#include "tgflow/detail/simd.hpp"

namespace tgflow {

constexpr int64_t kLane = 8;  ///< Floats of a vector.

inline int64_t padded(int64_t size) { return (size + kLane - 1) / kLane * kLane; }

/// The left factor of a product: element (i, k) is `at[i * row + k * column]`.
struct Left {
  const float* at;
  int64_t row, column;
};

/// `kRows` rows of c = a b and `kVectors` vectors of their columns, from row `i` and column `j` on.
template <typename Lanes, int kRows, int kVectors>
TGFLOW_INLINE void multiply_block(const Left& a, int64_t depth, const float* b, int64_t stride, float* c,
                                  int64_t i, int64_t j) {
  using Vector = typename Lanes::Vector;
  Vector sum[kRows][kVectors] = {};
  const float* left = a.at + i * a.row;
  for (int64_t k = 0; k < depth; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector right = simd::vector_at<Lanes>(b + k * stride + j + Lanes::kLanes * v);
      for (int r = 0; r < kRows; ++r) sum[r][v] += left[r * a.row + k * a.column] * right;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Vector*>(c + (i + r) * stride + j + Lanes::kLanes * v) = sum[r][v];
    }
  }
}

template <typename Level, int kRows>
TGFLOW_INLINE void multiply_rows(const Left& a, int64_t depth, const float* b, int64_t stride, float* c,
                                 int64_t i) {
  constexpr int64_t kTwo = 2 * Level::kLanes;
  int64_t j = 0;
  for (; j + kTwo <= stride; j += kTwo) multiply_block<Level, kRows, 2>(a, depth, b, stride, c, i, j);
  for (; j + 2 * kLane <= stride; j += 2 * kLane) {
    multiply_block<simd::Eight, kRows, 2>(a, depth, b, stride, c, i, j);
  }
  for (; j < stride; j += kLane) multiply_block<simd::Eight, kRows, 1>(a, depth, b, stride, c, i, j);
}

/// c = a b, [rows, stride], of `b`, [depth, stride]; `stride` is a multiple of 8.
template <typename Level>
TGFLOW_INLINE void multiply(const Left& a, int64_t rows, int64_t depth, const float* b, int64_t stride,
                            float* c) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) multiply_rows<Level, 4>(a, depth, b, stride, c, i);
  for (; i < rows; ++i) multiply_rows<Level, 1>(a, depth, b, stride, c, i);
}

}  // namespace tgflow
