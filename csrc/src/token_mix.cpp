#include "tgflow/token_mix.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gelu_elements.hpp"
#include "small_products.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

using simd::eight_at;
using simd::float8;
using Rows = std::vector<float>;

constexpr int64_t kChunk = 16;  // rows that one thread takes at a time, and that share partial sums
constexpr float kEpsilon = 1e-5f;

/// All that is made of one row: a vector of channels for each token or hidden unit, `stride` floats apart and
/// padded with what no sum reads.
struct Scratch {
  int64_t stride;
  Rows x, normed, scaled, out, grad, slope_x;  ///< [tokens, stride]
  Rows act, slope, hidden_keep;                ///< [hidden, stride]
  Rows out_keep;                               ///< [tokens, stride]
  Rows mean, deviation;                        ///< [stride]; `deviation` is 1 over it.

  explicit Scratch(const TokenMix& m) : stride(padded(m.dim)) {
    for (auto* rows : {&x, &normed, &scaled, &out, &grad, &slope_x}) rows->resize(m.tokens * stride);
    for (auto* rows : {&act, &slope}) rows->resize(m.hidden * stride);
    hidden_keep.assign(m.hidden * stride, 1.0f);
    out_keep.assign(m.tokens * stride, 1.0f);
    for (auto* row : {&mean, &deviation}) row->resize(stride);
  }
};

TGFLOW_INLINE void load(const float* from, int64_t rows, int64_t dim, int64_t stride, float* to) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * dim, dim, to + i * stride);
}

/// Factors of one row, [dim, units], turned to [units, stride].
TGFLOW_INLINE void turn(const float* from, int64_t units, int64_t dim, int64_t stride, float* to) {
  for (int64_t u = 0; u < units; ++u) {
    for (int64_t c = 0; c < dim; ++c) to[u * stride + c] = from[c * units + u];
  }
}

/// row = scale * row + shift, of one unit.
TGFLOW_INLINE void affine(const float* __restrict from, float scale, float shift, int64_t size,
                          float* __restrict to) {
  for (int64_t c = 0; c < size; ++c) to[c] = scale * from[c] + shift;
}

TGFLOW_INLINE void normalize(const TokenMix& m, Scratch& s) {
  float* __restrict mean = s.mean.data(), * __restrict deviation = s.deviation.data();
  std::fill(s.mean.begin(), s.mean.end(), 0.0f);
  std::fill(s.deviation.begin(), s.deviation.end(), 0.0f);
  const float share = 1.0f / static_cast<float>(m.tokens);
  for (int64_t t = 0; t < m.tokens; ++t) {
    const float* x = s.x.data() + t * s.stride;
    for (int64_t c = 0; c < s.stride; ++c) mean[c] += share * x[c];
  }
  for (int64_t t = 0; t < m.tokens; ++t) {
    const float* x = s.x.data() + t * s.stride;
    for (int64_t c = 0; c < s.stride; ++c) deviation[c] += share * (x[c] - mean[c]) * (x[c] - mean[c]);
  }
  for (int64_t c = 0; c < s.stride; ++c) deviation[c] = 1 / std::sqrt(deviation[c] + kEpsilon);
  for (int64_t t = 0; t < m.tokens; ++t) {
    const float* x = s.x.data() + t * s.stride;
    float* normed = s.normed.data() + t * s.stride;
    for (int64_t c = 0; c < s.stride; ++c) normed[c] = (x[c] - mean[c]) * deviation[c];
    affine(normed, m.norm_weight[t], m.norm_bias[t], s.stride, s.scaled.data() + t * s.stride);
  }
}

/// Leaves `act` and `slope` of row `n`, and its factors.
template <typename Level>
TGFLOW_INLINE void expand(const TokenMix& m, int64_t n, Scratch& s) {
  load(m.x + n * m.tokens * m.dim, m.tokens, m.dim, s.stride, s.x.data());
  if (m.hidden_keep != nullptr) {
    turn(m.hidden_keep + n * m.dim * m.hidden, m.hidden, m.dim, s.stride, s.hidden_keep.data());
  }
  if (m.out_keep != nullptr) {
    turn(m.out_keep + n * m.dim * m.tokens, m.tokens, m.dim, s.stride, s.out_keep.data());
  }
  normalize(m, s);
  multiply<Level>({m.hidden_weight, m.tokens, 1}, m.hidden, m.tokens, s.scaled.data(), s.stride,
                  s.slope.data());
  for (int64_t j = 0; j < m.hidden; ++j) {
    float* slope = s.slope.data() + j * s.stride;
    for (int64_t c = 0; c < s.stride; ++c) slope[c] += m.hidden_bias[j];
  }
  gelu_elements(s.hidden_keep.data(), m.hidden * s.stride, s.slope.data(), s.act.data());
}

struct MixRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const TokenMix& m, float* out, int64_t begin, int64_t end) {
    Scratch s(m);
    for (int64_t n = begin; n < end; ++n) {
      expand<Level>(m, n, s);
      multiply<Level>({m.out_weight, m.hidden, 1}, m.tokens, m.hidden, s.act.data(), s.stride, s.out.data());
      for (int64_t t = 0; t < m.tokens; ++t) {
        const float *x = s.x.data() + t * s.stride, *mapped = s.out.data() + t * s.stride;
        const float* keep = s.out_keep.data() + t * s.stride;
        float* to = out + (n * m.tokens + t) * m.dim;
        for (int64_t c = 0; c < m.dim; ++c) to[c] = x[c] + keep[c] * (mapped[c] + m.out_bias[t]);
      }
    }
  }
};

TGFLOW_INLINE float sum_of(const float* row, int64_t size) {
  float8 sums = {};
  for (int64_t c = 0; c < size; c += kLane) sums += eight_at(row + c);
  return simd::sum_of(sums);
}

/// sums[i] += the sum of row i of `grad`, and weight[i, j] += its product with row j of `input`.
template <typename Level>
TGFLOW_INLINE void add_linear(const Rows& grad, int64_t rows, const Rows& input, int64_t columns,
                              int64_t stride, float* weight, float* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = grad.data() + i * stride;
    sums[i] += sum_of(row, stride);
    for (int64_t j = 0; j < columns; ++j) {
      weight[i * columns + j] += simd::dot<Level>(row, input.data() + j * stride, stride);
    }
  }
}

/// From the gradient of the scaled tokens, in `out`, to that of `x` through the norm, added to `grad`.
template <typename Level>
TGFLOW_INLINE void normalize_backward(const TokenMix& m, Scratch& s, float* norm_weight, float* norm_bias) {
  float* __restrict mean = s.mean.data(), * __restrict along = s.slope_x.data();
  std::fill(s.mean.begin(), s.mean.end(), 0.0f);
  std::fill_n(along, s.stride, 0.0f);
  const float share = 1.0f / static_cast<float>(m.tokens);
  for (int64_t t = 0; t < m.tokens; ++t) {
    float *slope = s.out.data() + t * s.stride, *normed = s.normed.data() + t * s.stride;
    norm_bias[t] += sum_of(slope, s.stride);
    norm_weight[t] += simd::dot<Level>(slope, normed, s.stride);
    for (int64_t c = 0; c < s.stride; ++c) {
      slope[c] *= m.norm_weight[t];
      mean[c] += share * slope[c];
      along[c] += share * slope[c] * normed[c];
    }
  }
  for (int64_t t = 0; t < m.tokens; ++t) {
    const float *slope = s.out.data() + t * s.stride, *normed = s.normed.data() + t * s.stride;
    float* grad = s.grad.data() + t * s.stride;
    const float* deviation = s.deviation.data();
    for (int64_t c = 0; c < s.stride; ++c)
      grad[c] += deviation[c] * (slope[c] - mean[c] - normed[c] * along[c]);
  }
}

/// Rows `begin` to `end`; adds to `sums`, the gradients of all parameters.
struct BackwardRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const TokenMix& m, const float* grad_out, float* grad_x, float* sums,
                                int64_t begin, int64_t end) {
    Scratch s(m);
    Rows kept(m.tokens * s.stride);
    float *norm_weight = sums, *norm_bias = norm_weight + m.tokens;
    float *hidden_weight = norm_bias + m.tokens, *hidden_bias = hidden_weight + m.hidden * m.tokens;
    float *out_weight = hidden_bias + m.hidden, *out_bias = out_weight + m.tokens * m.hidden;
    for (int64_t n = begin; n < end; ++n) {
      expand<Level>(m, n, s);
      load(grad_out + n * m.tokens * m.dim, m.tokens, m.dim, s.stride, s.grad.data());
      for (int64_t i = 0; i < m.tokens * s.stride; ++i) kept[i] = s.grad[i] * s.out_keep[i];
      add_linear<Level>(kept, m.tokens, s.act, m.hidden, s.stride, out_weight, out_bias);
      multiply<Level>({m.out_weight, 1, m.hidden}, m.hidden, m.tokens, kept.data(), s.stride, s.act.data());
      for (int64_t i = 0; i < m.hidden * s.stride; ++i) s.slope[i] *= s.act[i];
      add_linear<Level>(s.slope, m.hidden, s.scaled, m.tokens, s.stride, hidden_weight, hidden_bias);
      multiply<Level>({m.hidden_weight, 1, m.tokens}, m.tokens, m.hidden, s.slope.data(), s.stride,
                      s.out.data());
      normalize_backward<Level>(m, s, norm_weight, norm_bias);
      for (int64_t t = 0; t < m.tokens; ++t) {
        std::copy_n(s.grad.data() + t * s.stride, m.dim, grad_x + (n * m.tokens + t) * m.dim);
      }
    }
  }
};

}  // namespace

void token_mix(const TokenMix& mix, float* out) {
  parallel_for(mix.num, kChunk,
               [&](int64_t begin, int64_t end) { simd::run<MixRange>(mix, out, begin, end); });
}

void token_mix_backward(const TokenMix& mix, const float* grad_out, float* grad_x, float* grad_parameters) {
  const int64_t num_chunks = (mix.num + kChunk - 1) / kChunk, size = mix.num_parameters();
  Rows sums(num_chunks * size);
  parallel_for(num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      simd::run<BackwardRange>(mix, grad_out, grad_x, sums.data() + c * size, c * kChunk,
                               std::min((c + 1) * kChunk, mix.num));
    }
  });
  std::fill_n(grad_parameters, size, 0.0f);
  for (int64_t c = 0; c < num_chunks; ++c) {
    for (int64_t i = 0; i < size; ++i) grad_parameters[i] += sums[c * size + i];
  }
}

}  // namespace tgflow
