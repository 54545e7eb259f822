// Attention over sampled neighbors and its gradients: kernels by how many numbers a lane reads at once.
#include "tgflow/cuda/attend.hpp"

using namespace tgflow;

using SlotGradients = SlotGradientsOf<float>;

extern "C" __global__ void __launch_bounds__(64) attend_by_4(Attention attention, AttentionOut out) {
  attend_all<4>(attention, out);
}
extern "C" __global__ void __launch_bounds__(64) attend_by_1(Attention attention, AttentionOut out) {
  attend_all<1>(attention, out);
}

/// Gradients of the slots and of the queries.
extern "C" __global__ void __launch_bounds__(64)
    attend_backward_by_4(Attention attention, AttentionGradients gradients, SlotGradients slots) {
  attend_all_backward<4>(attention, gradients, slots);
}
extern "C" __global__ void __launch_bounds__(64)
    attend_backward_by_1(Attention attention, AttentionGradients gradients, SlotGradients slots) {
  attend_all_backward<1>(attention, gradients, slots);
}

/// Gradients of the frontier below, by the lists of its rows' slots.
extern "C" __global__ void __launch_bounds__(256)
    attend_below_by_4(Attention attention, AttentionGradients gradients, SlotGradients slots,
                      RowLists lists) {
  attend_below<4>(attention, gradients, slots, lists);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_below_by_1(Attention attention, AttentionGradients gradients, SlotGradients slots,
                      RowLists lists) {
  attend_below<1>(attention, gradients, slots, lists);
}
