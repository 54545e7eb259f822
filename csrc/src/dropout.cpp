#include "tgflow/dropout.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <type_traits>

#include "tgflow/detail/keep.hpp"
#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kKeepLanes = 16;                   ///< Parallel draws.
constexpr int64_t kKeepGroup = kKeepLanes * kWords;  ///< Elements that they cover.
constexpr int64_t kKeepGrain = 4096 / kKeepGroup;    ///< Least number of groups for another thread.

/// The factors of the elements of one group of a row, in order.
TGFLOW_INLINE void group_factors(uint64_t key, const Dropout& dropout, int64_t row, int64_t group,
                                 float (&factor)[kKeepGroup]) {
  for (int64_t l = 0; l < kKeepLanes; ++l) {
    const Random4 words = keep_words(key, row, group * kKeepLanes + l);
    for (int64_t w = 0; w < kWords; ++w) factor[l * kWords + w] = dropout.factor(words.word[w]);
  }
}

#if defined(__x86_64__)
/// The same bits with AVX2: four draws per vector, each word in the low half of 64 bits, as products
/// require.
struct Avx2Factors {
  static constexpr int kVectors = kKeepLanes / 4;

  TGFLOW_AVX2 static void fill(uint64_t key, const Dropout& dropout, int64_t row, int64_t group,
                               float (&factor)[kKeepGroup]) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    const __m256i first = _mm256_set1_epi64x(0xD2511F53LL), second = _mm256_set1_epi64x(0xCD9E8D57LL);
    __m256i w0[kVectors], w1[kVectors], w2[kVectors], w3[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      w0[v] = _mm256_set1_epi64x(row);
      w1[v] = _mm256_srli_epi64(w0[v], 32);
      w2[v] =
          _mm256_add_epi64(_mm256_set1_epi64x(group * kKeepLanes + 4 * v), _mm256_setr_epi64x(0, 1, 2, 3));
      w3[v] = _mm256_srli_epi64(w2[v], 32);
    }
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
      for (int v = 0; v < kVectors; ++v) {
        const __m256i a = _mm256_mul_epu32(first, w0[v]), b = _mm256_mul_epu32(second, w2[v]);
        w0[v] = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(w1[v], key0));
        w1[v] = b;
        w2[v] = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(w3[v], key1));
        w3[v] = a;
      }
      next_philox_key(k0, k1);
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m256i low = _mm256_blend_epi32(w0[v], _mm256_slli_epi64(w1[v], 32), 0xAA);
      const __m256i high = _mm256_blend_epi32(w2[v], _mm256_slli_epi64(w3[v], 32), 0xAA);
      const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
      store(dropout, _mm256_permute2x128_si256(even, odd, 0x20), factor + 16 * v);
      store(dropout, _mm256_permute2x128_si256(even, odd, 0x31), factor + 16 * v + 8);
    }
  }

 private:
  TGFLOW_AVX2 static void store(const Dropout& dropout, __m256i word, float* factor) {
    const __m256i top = _mm256_set1_epi32(static_cast<int>(0x80000000u));  // to compare as unsigned
    const __m256i threshold = _mm256_xor_si256(_mm256_set1_epi32(static_cast<int>(dropout.threshold)), top);
    const __m256 drops = _mm256_castsi256_ps(_mm256_cmpgt_epi32(threshold, _mm256_xor_si256(word, top)));
    _mm256_storeu_ps(factor, _mm256_andnot_ps(drops, _mm256_set1_ps(dropout.scale)));
  }
};
#endif

template <typename Level>
TGFLOW_INLINE void fill_factors(uint64_t key, const Dropout& dropout, int64_t row, int64_t group,
                                float (&factor)[kKeepGroup]) {
#if defined(__x86_64__)
  if constexpr (!std::is_same_v<Level, simd::Baseline>) {
    return Avx2Factors::fill(key, dropout, row, group, factor);
  }
#endif
  group_factors(key, dropout, row, group, factor);
}

struct FillGroups {
  template <typename Level>
  TGFLOW_INLINE static void run(uint64_t key, const Dropout& dropout, int64_t row, int64_t row_size,
                                float* out, int64_t begin, int64_t end) {
    float factor[kKeepGroup];
    for (int64_t g = begin; g < end; ++g) {
      fill_factors<Level>(key, dropout, row, g, factor);
      std::copy_n(factor, std::min(kKeepGroup, row_size - g * kKeepGroup), out + g * kKeepGroup);
    }
  }
};

/// Sets `out` to factor * gelu(x) and `x` to factor * gelu'(x): formula 7.1.26 of Abramowitz and Stegun for
/// the normal distribution's tail, whose factor exp(-x^2 / 2) is also the density's.
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
      if (dropout.threshold > 0) fill_factors<Level>(key, dropout, 0, g, factor);
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

void keep_factors(uint64_t key, double rate, int64_t num_rows, int64_t row_size, float* out) {
  const Dropout dropout = dropout_of(rate);
  for (int64_t row = 0; row < num_rows; ++row) {
    parallel_for((row_size + kKeepGroup - 1) / kKeepGroup, kKeepGrain, [&](int64_t begin, int64_t end) {
      simd::run<FillGroups>(key, dropout, row, row_size, out + row * row_size, begin, end);
    });
  }
}

void gelu_dropout(uint64_t key, double rate, int64_t size, float* x, float* out) {
  const Dropout dropout = dropout_of(rate);
  parallel_for((size + kKeepGroup - 1) / kKeepGroup, kKeepGrain, [&](int64_t begin, int64_t end) {
    simd::run<GeluGroups>(key, dropout, size, x, out, begin, end);
  });
}

}  // namespace tgflow
