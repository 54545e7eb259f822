// The part of a gated recurrent unit after its matrix products: gates, candidate and blend, in one kernel.
// On the CPU torch computes it. No `std::` here, as NVRTC compiles it.
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

}  // namespace tgflow
