#include "tgflow/dropout.hpp"

#include <algorithm>

#include "keep_lanes.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

struct FillGroups {
  template <typename Level>
  TGFLOW_INLINE static void run(uint64_t key, const Dropout& dropout, int64_t row, int64_t row_size,
                                float* out, int64_t begin, int64_t end) {
    float factor[kKeepGroup];
    for (int64_t g = begin; g < end; ++g) {
      FactorsOf<Level>::fill(key, dropout, row, g, factor);
      std::copy_n(factor, std::min(kKeepGroup, row_size - g * kKeepGroup), out + g * kKeepGroup);
    }
  }
};

}  // namespace

void keep_factors(uint64_t key, double rate, int64_t num_rows, int64_t row_size, float* out) {
  const Dropout dropout = dropout_of(rate);
  for (int64_t row = 0; row < num_rows; ++row) {
    parallel_for((row_size + kKeepGroup - 1) / kKeepGroup, kKeepGrain, [&](int64_t begin, int64_t end) {
      simd::run<FillGroups>(key, dropout, row, row_size, out + row * row_size, begin, end);
    });
  }
}

}  // namespace tgflow
