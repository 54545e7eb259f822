// The step of a gated recurrent unit after its matrix products: kernels by how many numbers a lane reads at
// once.
#include "tgflow/cuda/gru.hpp"

using namespace tgflow;

extern "C" __global__ void __launch_bounds__(256) gru_forward_by_4(Gru gru, float* gates, float* out) {
  gru_step<4>(gru, gates, out);
}
extern "C" __global__ void __launch_bounds__(256) gru_forward_by_1(Gru gru, float* gates, float* out) {
  gru_step<1>(gru, gates, out);
}
extern "C" __global__ void __launch_bounds__(256)
    gru_backward_by_4(Gru gru, const float* gates, const float* grad_out, float* grad_gates,
                      float* grad_own) {
  gru_step_backward<4>(gru, gates, grad_out, grad_gates, grad_own);
}
extern "C" __global__ void __launch_bounds__(256)
    gru_backward_by_1(Gru gru, const float* gates, const float* grad_out, float* grad_gates,
                      float* grad_own) {
  gru_step_backward<1>(gru, gates, grad_out, grad_gates, grad_own);
}
