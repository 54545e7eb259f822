#include "tgflow/cosines.hpp"

#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrain = 64;  // rows

struct CosineRows {
  template <typename Level>
  TGFLOW_INLINE static void run(int64_t dim, const float* dt, const float* w, float* out, int64_t begin,
                                int64_t end) {
    for (int64_t r = begin; r < end; ++r) simd::cosines(out + r * dim, w, dt[r], dim);
  }
};

}  // namespace

void cosines(int64_t size, int64_t dim, const float* dt, const float* w, float* out) {
  parallel_for(size, kGrain,
               [&](int64_t begin, int64_t end) { simd::run<CosineRows>(dim, dt, w, out, begin, end); });
}

}  // namespace tgflow
