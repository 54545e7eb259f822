#include "tgflow/gru.hpp"

#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrain = 64;  // rows

TGFLOW_INLINE void forward_row(const float* __restrict memory, const float* __restrict own, int64_t dim,
                               float* __restrict reset, float* __restrict keep, float* __restrict fresh,
                               float* __restrict out) {
  for (int64_t i = 0; i < dim; ++i) {
    reset[i] = simd::sigmoid(reset[i]);
    keep[i] = simd::sigmoid(keep[i]);
    fresh[i] = simd::tanh(fresh[i] + reset[i] * own[i]);
    out[i] = fresh[i] + keep[i] * (memory[i] - fresh[i]);
  }
}

struct ForwardRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const Gru& gru, float* gates, float* out, int64_t begin, int64_t end) {
    const int64_t dim = gru.dim;
    for (int64_t r = begin; r < end; ++r) {
      float* gate = gates + 3 * r * dim;
      forward_row(gru.memory + r * gru.memory_stride, gru.own + r * dim, dim, gate, gate + dim,
                  gate + 2 * dim, out + r * dim);
    }
  }
};

/// Pointers to one row of everything.
struct BackwardRow {
  const float *memory, *own, *reset, *keep, *fresh, *grad_out;
  float *grad_reset, *grad_keep, *grad_fresh, *grad_own;
};

TGFLOW_INLINE void backward_row(const BackwardRow& row, int64_t dim) {
#pragma GCC ivdep
  for (int64_t i = 0; i < dim; ++i) {
    const float reset = row.reset[i];
    const float keep = row.keep[i];
    const float fresh = row.fresh[i];
    const float candidate = row.grad_out[i] * (1 - keep) * (1 - fresh * fresh);
    row.grad_fresh[i] = candidate;
    row.grad_own[i] = candidate * reset;
    row.grad_reset[i] = candidate * row.own[i] * reset * (1 - reset);
    row.grad_keep[i] = row.grad_out[i] * (row.memory[i] - fresh) * keep * (1 - keep);
  }
}

struct BackwardRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const Gru& gru, const float* gates, const float* grad_out, float* grad_gates,
                                float* grad_own, int64_t begin, int64_t end) {
    const int64_t dim = gru.dim;
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gates + 3 * r * dim;
      float* grad = grad_gates + 3 * r * dim;
      backward_row({gru.memory + r * gru.memory_stride, gru.own + r * dim, gate, gate + dim, gate + 2 * dim,
                    grad_out + r * dim, grad, grad + dim, grad + 2 * dim, grad_own + r * dim},
                   dim);
    }
  }
};

}  // namespace

void gru_forward(const Gru& gru, float* gates, float* out) {
  parallel_for(gru.num_rows, kGrain,
               [&](int64_t begin, int64_t end) { simd::run<ForwardRange>(gru, gates, out, begin, end); });
}

void gru_backward(const Gru& gru, const float* gates, const float* grad_out, float* grad_gates,
                  float* grad_own) {
  parallel_for(gru.num_rows, kGrain, [&](int64_t begin, int64_t end) {
    simd::run<BackwardRange>(gru, gates, grad_out, grad_gates, grad_own, begin, end);
  });
}

}  // namespace tgflow
