// The loss of a step with its gradient, and the check that its values are finite: one kernel each.
#include "tgflow/cuda/warp.hpp"
#include "tgflow/types.hpp"

using namespace tgflow;

constexpr int kLossWarps = 32;  ///< Of the only thread block: sums are in a fixed order.

/// Logits of events and of their negatives; tgflow/cuda/loss.py has the same fields.
struct LinkLogits {
  const float* positive;
  int64_t num_positive;
  const float* negative;
  int64_t num_negative;
  float* grad_positive;
  float* grad_negative;
  float* loss;
};

/// log(1 + exp(x)), as PyTorch computes it.
__device__ inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/// Returns this thread's part of the mean of softplus(sign * logit), and fills half its gradient.
__device__ inline float mean_part(const float* logit, int64_t size, float sign, float* grad) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
    const float x = sign * logit[i];
    sum += softplus(x);
    grad[i] = sign / (1 + expf(-x)) / static_cast<float>(2 * size);
  }
  return sum / static_cast<float>(size);
}

/// The binary cross-entropy of logits, half of it from positives, half from negatives.
extern "C" __global__ void __launch_bounds__(1024) link_bce(LinkLogits logits) {
  __shared__ float parts[kLossWarps];
  const float own = mean_part(logits.positive, logits.num_positive, -1, logits.grad_positive) +
                    mean_part(logits.negative, logits.num_negative, 1, logits.grad_negative);
  const float part = warp_sum(own);
  if (lane_index() == 0) parts[threadIdx.x / kWarp] = part;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const float sum = warp_sum(parts[lane_index()]);
  if (threadIdx.x == 0) *logits.loss = sum / 2;
}

/// Values to check; tgflow/cuda/loss.py has the same fields.
struct CheckedValues {
  const float* values[4];
  int64_t size[4];
  bool* is_lost;
};

/// Sets the flag if a value is not finite.
extern "C" __global__ void __launch_bounds__(256) check_finite(CheckedValues checked) {
  for (int which = 0; which < 4; ++which) {
    for (int64_t i = thread_index(); i < checked.size[which]; i += thread_count()) {
      const float x = checked.values[which][i];
      if (x - x != 0) *checked.is_lost = true;
    }
  }
}
