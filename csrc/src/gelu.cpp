#include "tgflow/gelu.hpp"

#include <algorithm>

#include "gelu_elements.hpp"
#include "keep_lanes.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

template <typename Factors>
TGFLOW_INLINE void gelu_groups(uint64_t key, const Dropout& dropout, int64_t size, float* x, float* out,
                               int64_t begin, int64_t end) {
  float factor[kKeepGroup];
  std::fill_n(factor, kKeepGroup, 1.0f);
  for (int64_t g = begin; g < end; ++g) {
    if (dropout.threshold > 0) Factors::fill(key, dropout, 0, g, factor);
    const int64_t first = g * kKeepGroup;
    if (first + kKeepGroup <= size) {
      gelu_elements(factor, kKeepGroup, x + first, out + first);
    } else {
      gelu_elements(factor, size - first, x + first, out + first);
    }
  }
}

TGFLOW_AVX2 void gelu_groups_avx2(uint64_t key, const Dropout& dropout, int64_t size, float* x, float* out,
                                  int64_t begin, int64_t end) {
  gelu_groups<Avx2Factors>(key, dropout, size, x, out, begin, end);
}

void gelu_groups_plain(uint64_t key, const Dropout& dropout, int64_t size, float* x, float* out,
                       int64_t begin, int64_t end) {
  gelu_groups<PlainFactors>(key, dropout, size, x, out, begin, end);
}

}  // namespace

void gelu_dropout(uint64_t key, double rate, int64_t size, float* x, float* out) {
  const auto groups = TGFLOW_HAS_AVX2() ? gelu_groups_avx2 : gelu_groups_plain;
  const Dropout dropout = dropout_of(rate);
  parallel_for((size + kKeepGroup - 1) / kKeepGroup, kKeepGrain,
               [&](int64_t begin, int64_t end) { groups(key, dropout, size, x, out, begin, end); });
}

}  // namespace tgflow
