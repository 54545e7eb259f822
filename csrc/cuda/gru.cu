// The step of a gated recurrent unit after its matrix products: one kernel per number of elements a lane
// reads at once.
#include "tgflow/cuda/warp.hpp"
#include "tgflow/types.hpp"

using namespace tgflow;

/// One step for `num_rows` rows of width `dim`.
struct Gru {
  int64_t num_rows;
  int64_t dim;
  const float* memory;    ///< [R, dim], rows `memory_stride` apart.
  int64_t memory_stride;  ///< In floats.
  const float* own;       ///< [R, dim]: what the memory adds to the candidate through the reset gate.
  const int64_t* flag;    ///< [R], `flag_stride` apart: 0 for a row that keeps its memory; null: none does.
  int64_t flag_stride;
};

__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/// Calls `step(row, column)` for every pack of numbers of every row.
template <int kWidth, typename Step>
__device__ inline void for_packs(const Gru& gru, const Step& step) {
  for (int64_t r = warp_index(); r < gru.num_rows; r += warp_count()) {
    for (int64_t i = lane_index() * kWidth; i < gru.dim; i += kWarp * kWidth) step(r, i);
  }
}

template <int kWidth>
__device__ inline void gru_forward(const Gru& gru, float* gates, float* out) {
  using Numbers = Pack<kWidth>;
  for_packs<kWidth>(gru, [&](int64_t r, int64_t i) {
    float* row = gates + 3 * r * gru.dim;
    const bool keeps = gru.flag != nullptr && gru.flag[r * gru.flag_stride] == 0;
    const auto memory = Numbers::load(gru.memory + r * gru.memory_stride, i);
    const auto own = Numbers::load(gru.own + r * gru.dim, i);
    auto reset = Numbers::load(row, i), keep = Numbers::load(row + gru.dim, i);
    auto fresh = Numbers::load(row + 2 * gru.dim, i), after = fresh;
    for (int w = 0; w < kWidth; ++w) {
      reset.at[w] = sigmoid(reset.at[w]);
      keep.at[w] = sigmoid(keep.at[w]);
      fresh.at[w] = tanhf(fresh.at[w] + reset.at[w] * own.at[w]);
      if (keeps) reset.at[w] = fresh.at[w] = 0, keep.at[w] = 1;  // so its gradients are 0
      after.at[w] = fresh.at[w] + keep.at[w] * (memory.at[w] - fresh.at[w]);
    }
    reset.store(row, i);
    keep.store(row + gru.dim, i);
    fresh.store(row + 2 * gru.dim, i);
    after.store(out + r * gru.dim, i);
  });
}

template <int kWidth>
__device__ inline void gru_backward(const Gru& gru, const float* gates, const float* grad_out,
                                    float* grad_gates, float* grad_own) {
  using Numbers = Pack<kWidth>;
  for_packs<kWidth>(gru, [&](int64_t r, int64_t i) {
    const float* row = gates + 3 * r * gru.dim;
    const auto memory = Numbers::load(gru.memory + r * gru.memory_stride, i);
    const auto own = Numbers::load(gru.own + r * gru.dim, i), grad = Numbers::load(grad_out + r * gru.dim, i);
    const auto reset = Numbers::load(row, i), keep = Numbers::load(row + gru.dim, i);
    const auto fresh = Numbers::load(row + 2 * gru.dim, i);
    Numbers of_reset, of_keep, of_fresh, of_own;
    for (int w = 0; w < kWidth; ++w) {
      const float z = keep.at[w], open = reset.at[w], made = fresh.at[w];
      const float candidate = grad.at[w] * (1 - z) * (1 - made * made);
      of_fresh.at[w] = candidate;
      of_own.at[w] = candidate * open;
      of_reset.at[w] = candidate * own.at[w] * open * (1 - open);
      of_keep.at[w] = grad.at[w] * (memory.at[w] - made) * z * (1 - z);
    }
    float* out = grad_gates + 3 * r * gru.dim;
    of_reset.store(out, i);
    of_keep.store(out + gru.dim, i);
    of_fresh.store(out + 2 * gru.dim, i);
    of_own.store(grad_own + r * gru.dim, i);
  });
}

KERNELS_BY_WIDTH(256, gru_forward, (Gru gru, float* gates, float* out), (gru, gates, out))
KERNELS_BY_WIDTH(256, gru_backward,
                 (Gru gru, const float* gates, const float* grad_out, float* grad_gates, float* grad_own),
                 (gru, gates, grad_out, grad_gates, grad_own))
