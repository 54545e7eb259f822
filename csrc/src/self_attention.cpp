#include "tgflow/self_attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "small_products.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

using simd::eight_at;
using simd::float8;
using simd::sum_of;

constexpr int64_t kGrain = 4;  // heads of sequences that are worth waking a thread for

/// One head of one sequence: its parts close together, rows padded with zeros to whole vectors.
struct Head {
  int64_t length, width, wide, narrow;                 ///< Padded: `wide` of `length`, `narrow` of `width`.
  std::vector<float> query, key, value, grad, result;  ///< [length, narrow]
  std::vector<float> turned;                           ///< [width, wide]: keys or values, transposed.
  std::vector<float> weight, kept, slope;              ///< [length, wide]

  explicit Head(const SelfAttention& a)
      : length(a.length), width(a.width), wide(padded(length)), narrow(padded(width)) {
    for (auto* rows : {&query, &key, &value, &grad, &result}) rows->resize(length * narrow);
    for (auto* rows : {&weight, &kept, &slope}) rows->resize(length * wide);
    turned.resize(width * wide);
  }

  Left across(const std::vector<float>& x) const { return {x.data(), wide, 1}; }
  Left down(const std::vector<float>& x) const { return {x.data(), 1, wide}; }
  Left along(const std::vector<float>& x) const { return {x.data(), narrow, 1}; }
};

/// Where one head of one sequence is in tokens that are `step` floats apart.
struct Place {
  int64_t first, step;
};

TGFLOW_INLINE Place place_of(const SelfAttention& a, int64_t item, int64_t parts, int64_t part) {
  const int64_t n = item / a.heads, h = item % a.heads, step = parts * a.heads * a.width;
  return {n * a.length * step + (part * a.heads + h) * a.width, step};
}

TGFLOW_INLINE void load(const float* from, const Place& place, const Head& head, std::vector<float>& to) {
  for (int64_t i = 0; i < head.length; ++i) {
    std::copy_n(from + place.first + i * place.step, head.width, to.data() + i * head.narrow);
  }
}

TGFLOW_INLINE void store(const Head& head, const std::vector<float>& from, float scale, const Place& place,
                         float* to) {
  for (int64_t i = 0; i < head.length; ++i) {
    const float* row = from.data() + i * head.narrow;
    float* out = to + place.first + i * place.step;
    for (int64_t c = 0; c < head.width; ++c) out[c] = scale * row[c];
  }
}

TGFLOW_INLINE void turn(Head& head, const std::vector<float>& from) {
  for (int64_t c = 0; c < head.width; ++c) {
    for (int64_t i = 0; i < head.length; ++i) head.turned[c * head.wide + i] = from[i * head.narrow + c];
  }
}

/// Turns a row of products into the softmax of `scale` times them; padding becomes 0.
TGFLOW_INLINE void softmax(float* row, int64_t length, int64_t wide, float scale) {
  for (int64_t j = length; j < wide; ++j) row[j] = row[0];
  float8 tops = eight_at(row);
  for (int64_t j = kLane; j < wide; j += kLane) tops = eight_at(row + j) > tops ? eight_at(row + j) : tops;
  float top = tops[0];
  for (int64_t l = 1; l < kLane; ++l) top = tops[l] > top ? tops[l] : top;
  for (int64_t j = 0; j < wide; ++j) row[j] = simd::exp(scale * (row[j] - top));
  for (int64_t j = length; j < wide; ++j) row[j] = 0;
  float8 sums = {};
  for (int64_t j = 0; j < wide; j += kLane) sums += eight_at(row + j);
  const float share = 1 / sum_of(sums);
  for (int64_t j = 0; j < wide; ++j) row[j] *= share;
}

TGFLOW_INLINE float scale_of(const SelfAttention& a) { return 1 / std::sqrt(static_cast<float>(a.width)); }

struct AttendRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const SelfAttention& a, float* weight, float* out, int64_t begin,
                                int64_t end) {
    Head head(a);
    const int64_t length = a.length, wide = head.wide;
    const float scale = scale_of(a);
    for (int64_t item = begin; item < end; ++item) {
      load(a.tokens, place_of(a, item, 3, 0), head, head.query);
      load(a.tokens, place_of(a, item, 3, 1), head, head.key);
      load(a.tokens, place_of(a, item, 3, 2), head, head.value);
      turn(head, head.key);
      multiply<Level>(head.along(head.query), length, a.width, head.turned.data(), wide, head.weight.data());
      for (int64_t i = 0; i < length; ++i) {
        float* row = head.weight.data() + i * wide;
        const int64_t at = (item * length + i) * length;
        softmax(row, length, wide, scale);
        if (weight != nullptr) std::copy_n(row, length, weight + at);
        if (a.keep != nullptr) {
          for (int64_t j = 0; j < length; ++j) row[j] *= a.keep[at + j];
        }
      }
      multiply<Level>(head.across(head.weight), length, length, head.value.data(), head.narrow,
                      head.result.data());
      store(head, head.result, 1, place_of(a, item, 1, 0), out);
    }
  }
};

/// From the gradients of the kept weights of a head, in `slope`, to those of the scores.
TGFLOW_INLINE void softmax_backward(Head& head, const float* weight, const float* keep) {
  for (int64_t i = 0; i < head.length; ++i) {
    float *row = head.weight.data() + i * head.wide, *kept = head.kept.data() + i * head.wide;
    float* slope = head.slope.data() + i * head.wide;
    std::copy_n(weight + i * head.length, head.length, row);
    std::copy_n(row, head.length, kept);
    if (keep != nullptr) {
      for (int64_t j = 0; j < head.length; ++j) {
        kept[j] *= keep[i * head.length + j];
        slope[j] *= keep[i * head.length + j];
      }
    }
    float8 sums = {};
    for (int64_t j = 0; j < head.wide; j += kLane) sums += eight_at(row + j) * eight_at(slope + j);
    const float mean = sum_of(sums);
    for (int64_t j = 0; j < head.wide; ++j) slope[j] = row[j] * (slope[j] - mean);
  }
}

struct BackwardRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const SelfAttention& a, const float* weight, const float* grad_out,
                                float* grad_tokens, int64_t begin, int64_t end) {
    Head head(a);
    const int64_t length = a.length, wide = head.wide, narrow = head.narrow, square = length * length;
    const float scale = scale_of(a);
    for (int64_t item = begin; item < end; ++item) {
      const Place places[] = {place_of(a, item, 3, 0), place_of(a, item, 3, 1), place_of(a, item, 3, 2)};
      load(a.tokens, places[0], head, head.query);
      load(a.tokens, places[1], head, head.key);
      load(a.tokens, places[2], head, head.value);
      load(grad_out, place_of(a, item, 1, 0), head, head.grad);
      turn(head, head.value);
      multiply<Level>(head.along(head.grad), length, a.width, head.turned.data(), wide, head.slope.data());
      softmax_backward(head, weight + item * square, a.keep == nullptr ? nullptr : a.keep + item * square);
      multiply<Level>(head.across(head.slope), length, length, head.key.data(), narrow, head.result.data());
      store(head, head.result, scale, places[0], grad_tokens);
      multiply<Level>(head.down(head.slope), length, length, head.query.data(), narrow, head.result.data());
      store(head, head.result, scale, places[1], grad_tokens);
      multiply<Level>(head.down(head.kept), length, length, head.grad.data(), narrow, head.result.data());
      store(head, head.result, 1, places[2], grad_tokens);
    }
  }
};

}  // namespace

void self_attend(const SelfAttention& a, float* weight, float* out) {
  parallel_for(a.num * a.heads, kGrain,
               [&](int64_t begin, int64_t end) { simd::run<AttendRange>(a, weight, out, begin, end); });
}

void self_attend_backward(const SelfAttention& a, const float* weight, const float* grad_out,
                          float* grad_tokens) {
  parallel_for(a.num * a.heads, kGrain, [&](int64_t begin, int64_t end) {
    simd::run<BackwardRange>(a, weight, grad_out, grad_tokens, begin, end);
  });
}

}  // namespace tgflow
