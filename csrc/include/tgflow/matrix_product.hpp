// Products of float32 matrices whose bits depend on neither the number of rows nor the number of threads.
#pragma once

#include <cstdint>

namespace tgflow {

/// Element (i, j) is data[i * row_stride + j * column_stride].
struct Matrix {
  const float* data;
  int64_t row_stride, column_stride;
};

/// out = prior + a b. Each element is a sum of fused multiply-adds in the order of the inner index, in blocks
/// of a fixed size that are added up in order; so rows and columns beside it change no bit of it.
struct Product {
  int64_t num_rows, num_columns, depth;  ///< a is [num_rows, depth], b is [depth, num_columns].
  Matrix a, b;
  Matrix prior;  ///< [num_rows, num_columns] with a column stride of 1; no data: zeros. It may be `out`.
  float* out;    ///< [num_rows, num_columns], apart from `a` and `b`.
  int64_t out_stride;  ///< Distance of rows.
};

/// How the factors of `multiply` are rounded; sums are in float32.
enum class Rounding { kNone, kBfloat16 };

/// Whether the machine has instructions for bfloat16 (AVX512_BF16), and the vectors in use are AVX-512.
bool has_bfloat16();

/// Computes `product`. With `kBfloat16` requires `has_bfloat16`.
void multiply(const Product& product, Rounding rounding);

}  // namespace tgflow
