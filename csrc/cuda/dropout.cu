// Dropout by key: the CPU's draws, one thread per four elements.
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/keep.hpp"

using namespace tgflow;

/// Struct of tgflow/cuda/dropout.py.
struct KeepFactors {
  const uint64_t* key;  ///< In device memory: a captured launch reads the key at replay.
  double rate;
  int64_t num_rows;
  int64_t row_size;
  float* out;  ///< [num_rows, row_size].
};

extern "C" __global__ void __launch_bounds__(256) keep_factors(KeepFactors asked) {
  const Dropout dropout = dropout_of(asked.rate);
  const int64_t per_row = (asked.row_size + kWords - 1) / kWords;
  for (int64_t i = thread_index(); i < asked.num_rows * per_row; i += thread_count()) {
    const int64_t row = i / per_row, first = i % per_row * kWords;
    const Random4 words = keep_words(*asked.key, row, i % per_row);
    float* out = asked.out + row * asked.row_size + first;
    for (int64_t w = 0; w < kWords && first + w < asked.row_size; ++w) out[w] = dropout.factor(words.word[w]);
  }
}
