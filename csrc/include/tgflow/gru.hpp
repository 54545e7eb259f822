// The part of a gated recurrent unit that is no matrix product: gates, candidate and blend, in one pass.
// Kernels take the struct too: no `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// One step for `num_rows` rows of width `dim`.
struct Gru {
  int64_t num_rows;
  int64_t dim;
  const float* memory;    ///< [R, dim], rows `memory_stride` apart.
  int64_t memory_stride;  ///< In floats.
  const float* own;       ///< [R, dim]: what the memory adds to the candidate through the reset gate.
};

/// `gates` holds [reset | keep | new] before their activations, [R, 3 * dim], and after them on return;
/// `out` becomes keep * memory + (1 - keep) * tanh(new + reset * own), [R, dim].
void gru_forward(const Gru& gru, float* gates, float* out);

/// Gradients of what `gates` held before, [R, 3 * dim], and of `own`, [R, dim], from that of `out`.
void gru_backward(const Gru& gru, const float* gates, const float* grad_out, float* grad_gates,
                  float* grad_own);

}  // namespace tgflow
