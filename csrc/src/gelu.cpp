#include "tgflow/gelu.hpp"

#include <algorithm>

#include "gelu_elements.hpp"
#include "keep_lanes.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

struct GeluGroups {
  template <typename Level>
  TGFLOW_INLINE static void run(uint64_t key, const Dropout& dropout, int64_t size, float* x, float* out,
                                int64_t begin, int64_t end) {
    float factor[kKeepGroup];
    std::fill_n(factor, kKeepGroup, 1.0f);
    for (int64_t g = begin; g < end; ++g) {
      if (dropout.threshold > 0) FactorsOf<Level>::fill(key, dropout, 0, g, factor);
      const int64_t first = g * kKeepGroup;
      if (first + kKeepGroup <= size) {
        gelu_elements(factor, kKeepGroup, x + first, out + first);
      } else {
        gelu_elements(factor, size - first, x + first, out + first);
      }
    }
  }
};

}  // namespace

void gelu_dropout(uint64_t key, double rate, int64_t size, float* x, float* out) {
  const Dropout dropout = dropout_of(rate);
  parallel_for((size + kKeepGroup - 1) / kKeepGroup, kKeepGrain, [&](int64_t begin, int64_t end) {
    simd::run<GeluGroups>(key, dropout, size, x, out, begin, end);
  });
}

}  // namespace tgflow
