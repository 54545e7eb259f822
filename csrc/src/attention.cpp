#include "tgflow/attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kChunk = 32;  // targets that one thread takes at a time, and that share partial sums

int64_t width(const Attention& a) { return a.h_dim + a.x_dim + a.time_dim; }
int64_t num_chunks(const Attention& a) { return (a.num_targets + kChunk - 1) / kChunk; }

TGFLOW_INLINE const float* query_of(const Attention& a, int64_t head, int64_t target) {
  const int64_t row = a.shared_query ? head : head * a.num_targets + target;
  return a.query + row * (a.h_dim + a.x_dim + a.time_dim);
}

TGFLOW_INLINE const float* below_of(const Attention& a, int64_t slot) {
  return a.below + a.neighbor[slot] * a.h_dim;
}

TGFLOW_INLINE const float* edge_x_of(const Attention& a, int64_t slot) {
  return a.edge_table + a.edge_row[slot] * a.x_dim;
}

/// q . [h | edge_x | time] of one slot.
TGFLOW_INLINE float dot_input(const Attention& a, const float* q, int64_t slot, const float* time) {
  float sum = simd::dot(q + a.h_dim + a.x_dim, time, a.time_dim);
  if (a.h_dim > 0) sum += simd::dot(q, below_of(a, slot), a.h_dim);
  if (a.x_dim > 0) sum += simd::dot(q + a.h_dim, edge_x_of(a, slot), a.x_dim);
  return sum;
}

/// out += scale * [h | edge_x | time] of one slot.
TGFLOW_INLINE void add_input(const Attention& a, float* out, float scale, int64_t slot, const float* time) {
  simd::add_scaled(out + a.h_dim + a.x_dim, scale, time, a.time_dim);
  if (a.h_dim > 0) simd::add_scaled(out, scale, below_of(a, slot), a.h_dim);
  if (a.x_dim > 0) simd::add_scaled(out + a.h_dim, scale, edge_x_of(a, slot), a.x_dim);
}

/// Turns the scores of the filled slots into their softmax; the others stay 0.
TGFLOW_INLINE void softmax(float* weight, const bool* mask, int64_t k) {
  float top = -INFINITY;
  for (int64_t j = 0; j < k; ++j) {
    if (mask[j]) top = std::max(top, weight[j]);
  }
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    if (mask[j]) sum += weight[j] = std::exp(weight[j] - top);
  }
  for (int64_t j = 0; j < k; ++j) {
    if (mask[j]) weight[j] /= sum;
  }
}

/// Fills `time`, [k, time_dim], for the filled slots of target `n`.
TGFLOW_INLINE void encode_times(const Attention& a, int64_t n, float* time) {
  for (int64_t slot = n * a.k; slot < (n + 1) * a.k; ++slot, time += a.time_dim) {
    if (a.mask[slot]) simd::cosines(time, a.frequency, a.dt[slot], a.time_dim);
  }
}

/// `time` is scratch for the encodings of one target's slots, [k, time_dim].
TGFLOW_INLINE void attend_target(const Attention& a, const AttentionOut& out, int64_t n, float* time) {
  const int64_t d = a.h_dim + a.x_dim + a.time_dim;
  const bool* mask = a.mask + n * a.k;
  encode_times(a, n, time);
  for (int64_t h = 0; h < a.num_heads; ++h) {
    const int64_t row = h * a.num_targets + n;
    float* weight = out.weight + row * a.k;
    float* inputs = out.inputs + row * d;
    const float* q = query_of(a, h, n);
    for (int64_t j = 0; j < a.k; ++j) {
      weight[j] = mask[j] ? dot_input(a, q, n * a.k + j, time + j * a.time_dim) : 0;
    }
    softmax(weight, mask, a.k);
    std::fill_n(inputs, d, 0.0f);
    float total = 0;
    for (int64_t j = 0; j < a.k; ++j) {
      if (!mask[j]) continue;
      const float kept = a.keep == nullptr ? weight[j] : weight[j] * a.keep[row * a.k + j];
      total += kept;
      add_input(a, inputs, kept, n * a.k + j, time + j * a.time_dim);
    }
    out.total[row] = total;
  }
}

TGFLOW_INLINE void attend_range(const Attention& a, const AttentionOut& out, int64_t begin, int64_t end,
                                float* time) {
  for (int64_t n = begin; n < end; ++n) attend_target(a, out, n, time);
}

TGFLOW_AVX2 void attend_range_avx2(const Attention& a, const AttentionOut& out, int64_t begin, int64_t end,
                                   float* time) {
  attend_range(a, out, begin, end, time);
}

/// What the backward pass leaves of each slot for the pass over `below`, [H, N, k] each.
struct SlotGradients {
  std::vector<float> kept;   ///< weight * keep
  std::vector<float> score;  ///< gradient of the score
};

/// Gradients of the weights of one head, then of its scores and query. `time`: [k, time_dim].
TGFLOW_INLINE void head_backward(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                 int64_t h, int64_t n, const float* time, float* query) {
  const int64_t d = a.h_dim + a.x_dim + a.time_dim;
  const int64_t row = h * a.num_targets + n;
  const float* weight = g.weight + row * a.k;
  float* score = slots.score.data() + row * a.k;
  float* kept = slots.kept.data() + row * a.k;
  float mean = 0;
  for (int64_t j = 0; j < a.k; ++j) {
    score[j] = kept[j] = 0;
    if (!a.mask[n * a.k + j]) continue;
    const float keep = a.keep == nullptr ? 1 : a.keep[row * a.k + j];
    kept[j] = weight[j] * keep;
    score[j] = keep * (g.total[row] + dot_input(a, g.inputs + row * d, n * a.k + j, time + j * a.time_dim));
    mean += weight[j] * score[j];
  }
  for (int64_t j = 0; j < a.k; ++j) {
    score[j] = weight[j] * (score[j] - mean);
    if (a.mask[n * a.k + j]) add_input(a, query, score[j], n * a.k + j, time + j * a.time_dim);
  }
}

/// `shared_query` is the gradient of a shared query over this chunk, [H, D], or null. `time`: [k, time_dim].
TGFLOW_INLINE void backward_range(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                  int64_t begin, int64_t end, float* shared_query, float* time) {
  const int64_t d = width(a);
  for (int64_t n = begin; n < end; ++n) {
    encode_times(a, n, time);
    for (int64_t h = 0; h < a.num_heads; ++h) {
      float* query = a.shared_query ? shared_query + h * d : g.query + (h * a.num_targets + n) * d;
      if (!a.shared_query) std::fill_n(query, d, 0.0f);
      head_backward(a, g, slots, h, n, time, query);
    }
  }
}

TGFLOW_AVX2 void backward_range_avx2(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                     int64_t begin, int64_t end, float* shared_query, float* time) {
  backward_range(a, g, slots, begin, end, shared_query, time);
}

/// The slots of each row of the frontier below, in slot order: compressed rows.
struct SlotsOfRows {
  std::vector<int64_t> start;
  std::vector<int64_t> slot;
};

SlotsOfRows slots_of_rows(const Attention& a) {
  const int64_t num_slots = a.num_targets * a.k;
  SlotsOfRows rows{std::vector<int64_t>(a.num_below + 2), {}};
  for (int64_t s = 0; s < num_slots; ++s) {
    if (a.mask[s]) ++rows.start[a.neighbor[s] + 2];
  }
  for (int64_t f = 0; f < a.num_below; ++f) rows.start[f + 2] += rows.start[f + 1];
  rows.slot.resize(rows.start[a.num_below + 1]);
  for (int64_t s = 0; s < num_slots; ++s) {
    if (a.mask[s]) rows.slot[rows.start[a.neighbor[s] + 1]++] = s;
  }
  return rows;  // each start has moved to the end of its row, which is the next row's start
}

TGFLOW_INLINE void below_range(const Attention& a, const AttentionGradients& g, const SlotGradients& slots,
                               const SlotsOfRows& rows, int64_t begin, int64_t end) {
  const int64_t d = a.h_dim + a.x_dim + a.time_dim;
  for (int64_t f = begin; f < end; ++f) {
    float* out = g.below + f * a.h_dim;
    std::fill_n(out, a.h_dim, 0.0f);
    for (int64_t i = rows.start[f]; i < rows.start[f + 1]; ++i) {
      const int64_t n = rows.slot[i] / a.k;
      const int64_t j = rows.slot[i] % a.k;
      for (int64_t h = 0; h < a.num_heads; ++h) {
        const int64_t row = h * a.num_targets + n;
        simd::add_scaled(out, slots.kept[row * a.k + j], g.inputs + row * d, a.h_dim);
        simd::add_scaled(out, slots.score[row * a.k + j], query_of(a, h, n), a.h_dim);
      }
    }
  }
}

TGFLOW_AVX2 void below_range_avx2(const Attention& a, const AttentionGradients& g, const SlotGradients& slots,
                                  const SlotsOfRows& rows, int64_t begin, int64_t end) {
  below_range(a, g, slots, rows, begin, end);
}

/// out = the sum of `num_rows` rows, in order.
void sum_rows(const float* rows, int64_t num_rows, int64_t row_width, float* out) {
  std::fill_n(out, row_width, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) simd::add_scaled(out, 1, rows + r * row_width, row_width);
}

}  // namespace

void attend(const Attention& a, const AttentionOut& out) {
  const auto range = TGFLOW_HAS_AVX2() ? attend_range_avx2 : attend_range;
  parallel_for(num_chunks(a), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> time(a.k * a.time_dim);
    range(a, out, begin * kChunk, std::min(end * kChunk, a.num_targets), time.data());
  });
}

void attend_backward(const Attention& a, const AttentionGradients& g) {
  const bool avx2 = TGFLOW_HAS_AVX2();
  const auto range = avx2 ? backward_range_avx2 : backward_range;
  const int64_t size = a.num_heads * a.num_targets * a.k;
  const int64_t shared = a.shared_query ? a.num_heads * width(a) : 0;
  SlotGradients slots{std::vector<float>(size), std::vector<float>(size)};
  std::vector<float> query(num_chunks(a) * shared);
  parallel_for(num_chunks(a), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> time(a.k * a.time_dim);
    for (int64_t c = begin; c < end; ++c) {
      range(a, g, slots, c * kChunk, std::min((c + 1) * kChunk, a.num_targets), query.data() + c * shared,
            time.data());
    }
  });
  if (a.shared_query) sum_rows(query.data(), num_chunks(a), shared, g.query);
  if (a.h_dim == 0) return;
  const SlotsOfRows rows = slots_of_rows(a);
  const auto below = avx2 ? below_range_avx2 : below_range;
  parallel_for(a.num_below, kChunk,
               [&](int64_t begin, int64_t end) { below(a, g, slots, rows, begin, end); });
}

}  // namespace tgflow
