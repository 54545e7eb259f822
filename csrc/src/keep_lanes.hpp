// Draws of dropout side by side, as loops over lanes that compilers turn into vector code.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "tgflow/detail/keep.hpp"
#include "tgflow/detail/simd.hpp"

namespace tgflow {

constexpr int64_t kKeepLanes = 16;                   ///< Draws side by side.
constexpr int64_t kKeepGroup = kKeepLanes * kWords;  ///< Elements that they decide about.
constexpr int64_t kKeepGrain = 4096 / kKeepGroup;    ///< Groups that are worth waking a thread for.

/// The words of draws `first` to `first + kKeepLanes` of a row: `keep_words` for each lane.
TGFLOW_INLINE void words_of(uint64_t key, int64_t row, int64_t first, uint32_t (&word)[kWords][kKeepLanes]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int64_t l = 0; l < kKeepLanes; ++l) {
    const Random4 counter = philox_counter(static_cast<uint64_t>(first + l), static_cast<uint64_t>(row));
    for (int64_t w = 0; w < kWords; ++w) word[w][l] = counter.word[w];
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int64_t l = 0; l < kKeepLanes; ++l) {
      const Random4 r = philox_round({{word[0][l], word[1][l], word[2][l], word[3][l]}}, k0, k1);
      word[0][l] = r.word[0];
      word[1][l] = r.word[1];
      word[2][l] = r.word[2];
      word[3][l] = r.word[3];
    }
    next_philox_key(k0, k1);
  }
}

/// The factors of the elements of one group of a row, in order.
TGFLOW_INLINE void group_factors(uint64_t key, const Dropout& dropout, int64_t row, int64_t group,
                                 float (&factor)[kKeepGroup]) {
  uint32_t word[kWords][kKeepLanes];
  words_of(key, row, group * kKeepLanes, word);
  for (int64_t w = 0; w < kWords; ++w) {
    for (int64_t l = 0; l < kKeepLanes; ++l) factor[l * kWords + w] = dropout.factor(word[w][l]);
  }
}

/// The factors of a group by plain loops.
struct PlainFactors {
  TGFLOW_INLINE static void fill(uint64_t key, const Dropout& dropout, int64_t row, int64_t group,
                                 float (&factor)[kKeepGroup]) {
    group_factors(key, dropout, row, group, factor);
  }
};

#if defined(__x86_64__)
/// The same bits by AVX2: four draws a vector, each word in the low half of 64 bits, where products are
/// taken.
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
#else
using Avx2Factors = PlainFactors;
#endif

/// What fills factors in a loop of `simd::run`.
template <typename Level>
using FactorsOf = std::conditional_t<std::is_same_v<Level, simd::Baseline>, PlainFactors, Avx2Factors>;

}  // namespace tgflow
