#include "tgflow/gelu.hpp"

#include <algorithm>

#include "keep_lanes.hpp"
#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

/// `out` becomes factor * gelu(x) and `x` factor * gelu'(x): by formula 7.1.26 of Abramowitz and Stegun for
/// the normal distribution's tail, whose factor exp(-x^2 / 2) is the density's too.
TGFLOW_INLINE void gelu_elements(const float* factor, int64_t size, float* __restrict x,
                                 float* __restrict out) {
  for (int64_t i = 0; i < size; ++i) {
    const float v = x[i], e = simd::exp(-0.5f * v * v);
    const float t = 1 / (1 + 0.23164190f * (v < 0 ? -v : v));
    float tail = 0.530702715f;
    tail = tail * t - 0.726576013f;
    tail = tail * t + 0.710706871f;
    tail = tail * t - 0.142248368f;
    tail = tail * t + 0.127414796f;
    tail = tail * t * e;
    const float below = v < 0 ? tail : 1 - tail;
    out[i] = factor[i] * (v * below);
    x[i] = factor[i] * (below + v * (0.398942280f * e));
  }
}

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
