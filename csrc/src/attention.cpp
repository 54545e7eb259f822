#include "tgflow/attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kChunk = 32;        // targets that one thread takes at a time, and that share partial sums
constexpr int64_t kGrainEdges = 512;  // whose products it pays to wake another thread for

int64_t width(const Attention& a) { return a.h_dim + a.x_dim + a.time_dim; }
int64_t num_chunks(const Attention& a) { return (a.num_targets + kChunk - 1) / kChunk; }

TGFLOW_INLINE const float* query_of(const Attention& a, int64_t head, int64_t target) {
  const int64_t row = a.shared_query ? head : head * a.num_targets + target;
  return a.query + row * (a.h_dim + a.x_dim + a.time_dim);
}

/// The filled slots of one target, close together, and the parts of their inputs.
struct Neighborhood {
  int64_t count = 0;
  std::vector<int64_t> slot;        ///< Of the target's k, [count].
  std::vector<const float*> below;  ///< Empty parts hold nothing.
  std::vector<const float*> edge_x;
  std::vector<int64_t> edge_row;  ///< Of the edge table.
  std::vector<const float*> time;
  std::vector<float> score;     ///< Scratch per slot.
  std::vector<float> encoding;  ///< [k, time_dim].

  explicit Neighborhood(const Attention& a)
      : slot(a.k),
        below(a.k),
        edge_x(a.k),
        edge_row(a.k),
        time(a.k),
        score(a.k),
        encoding(a.k * a.time_dim) {}
};

TGFLOW_INLINE void gather(const Attention& a, int64_t n, Neighborhood& near) {
  near.count = 0;
  for (int64_t j = 0; j < a.k; ++j) {
    const int64_t s = n * a.k + j;
    if (!a.mask[s]) continue;
    const int64_t i = near.count++;
    near.slot[i] = j;
    if (a.h_dim > 0) near.below[i] = a.below + a.neighbor[s] * a.h_dim;
    if (a.x_dim > 0) {
      near.edge_row[i] = a.edge_row[s];
      near.edge_x[i] = a.edge_table + a.edge_row[s] * a.x_dim;
      simd::prefetch(near.edge_x[i], a.x_dim);  // comes while the cosines are taken
    }
    float* encoding = near.encoding.data() + i * a.time_dim;
    simd::cosines(encoding, a.frequency, a.dt[s], a.time_dim);
    near.time[i] = encoding;
  }
}

/// q . edge_x of each row of the edge table and each head, [R, H], where all targets look for the same. As
/// events recur in a batch, that is fewer products than one a slot, and the same ones. Empty where it is not.
class EdgeScores {
 public:
  explicit EdgeScores(const Attention& a);

  /// q . edge_x of a neighbor, q being the query of head `h`.
  TGFLOW_INLINE float of(const Attention& a, const float* q, const Neighborhood& near, int64_t i,
                         int64_t h) const {
    return known_.empty() ? simd::dot(q + a.h_dim, near.edge_x[i], a.x_dim)
                          : known_[static_cast<size_t>(near.edge_row[i] * a.num_heads + h)];
  }

 private:
  std::vector<float> known_;
};

TGFLOW_INLINE void score_edges(const Attention& a, float* out, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.edge_table + r * a.x_dim;
    for (int64_t h = 0; h < a.num_heads; ++h) {
      out[r * a.num_heads + h] = simd::dot(query_of(a, h, 0) + a.h_dim, x, a.x_dim);
    }
  }
}

TGFLOW_AVX2 void score_edges_avx2(const Attention& a, float* out, int64_t begin, int64_t end) {
  score_edges(a, out, begin, end);
}

EdgeScores::EdgeScores(const Attention& a) {
  if (!a.shared_query || a.x_dim == 0 || a.num_edges >= a.num_targets * a.k) return;
  known_.resize(static_cast<size_t>(a.num_edges * a.num_heads));
  const auto range = TGFLOW_HAS_AVX2() ? score_edges_avx2 : score_edges;
  parallel_for(a.num_edges, kGrainEdges,
               [&](int64_t begin, int64_t end) { range(a, known_.data(), begin, end); });
}

/// q . [h | time] of one neighbor.
TGFLOW_INLINE float dot_without_edge(const Attention& a, const float* q, const Neighborhood& near,
                                     int64_t i) {
  float sum = simd::dot(q + a.h_dim + a.x_dim, near.time[i], a.time_dim);
  if (a.h_dim > 0) sum += simd::dot(q, near.below[i], a.h_dim);
  return sum;
}

/// q . [h | edge_x | time] of one neighbor.
TGFLOW_INLINE float dot_input(const Attention& a, const float* q, const Neighborhood& near, int64_t i) {
  float sum = dot_without_edge(a, q, near, i);
  if (a.x_dim > 0) sum += simd::dot(q + a.h_dim, near.edge_x[i], a.x_dim);
  return sum;
}

/// out += the sum of scale[i] * [h | edge_x | time] over the neighbors.
TGFLOW_INLINE void add_inputs(const Attention& a, float* out, const float* scale, const Neighborhood& near) {
  if (a.h_dim > 0) simd::add_rows(out, near.below.data(), scale, near.count, a.h_dim);
  if (a.x_dim > 0) simd::add_rows(out + a.h_dim, near.edge_x.data(), scale, near.count, a.x_dim);
  simd::add_rows(out + a.h_dim + a.x_dim, near.time.data(), scale, near.count, a.time_dim);
}

/// Turns scores into their softmax.
TGFLOW_INLINE void softmax(float* score, int64_t count) {
  float top = -INFINITY;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, score[i]);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += score[i] = std::exp(score[i] - top);
  for (int64_t i = 0; i < count; ++i) score[i] /= sum;
}

TGFLOW_INLINE void attend_target(const Attention& a, const EdgeScores& edges, const AttentionOut& out,
                                 int64_t n, Neighborhood& near) {
  const int64_t d = width(a);
  gather(a, n, near);
  for (int64_t h = 0; h < a.num_heads; ++h) {
    const int64_t row = h * a.num_targets + n;
    const float* q = query_of(a, h, n);
    float* score = near.score.data();
    for (int64_t i = 0; i < near.count; ++i) {
      score[i] = dot_without_edge(a, q, near, i);
      if (a.x_dim > 0) score[i] += edges.of(a, q, near, i, h);
    }
    softmax(score, near.count);
    std::fill_n(out.weight + row * a.k, a.k, 0.0f);
    float total = 0;
    for (int64_t i = 0; i < near.count; ++i) {
      const int64_t slot = row * a.k + near.slot[i];
      out.weight[slot] = score[i];
      if (a.keep != nullptr) score[i] *= a.keep[slot];
      total += score[i];
    }
    out.total[row] = total;
    std::fill_n(out.inputs + row * d, d, 0.0f);
    add_inputs(a, out.inputs + row * d, score, near);
  }
}

TGFLOW_INLINE void attend_range(const Attention& a, const EdgeScores& edges, const AttentionOut& out,
                                int64_t begin, int64_t end) {
  Neighborhood near(a);
  for (int64_t n = begin; n < end; ++n) attend_target(a, edges, out, n, near);
}

TGFLOW_AVX2 void attend_range_avx2(const Attention& a, const EdgeScores& edges, const AttentionOut& out,
                                   int64_t begin, int64_t end) {
  attend_range(a, edges, out, begin, end);
}

/// What the backward pass leaves of each slot for the pass over `below`, [H, N, k] each.
struct SlotGradients {
  std::vector<float> kept;   ///< weight * keep
  std::vector<float> score;  ///< gradient of the score
};

/// Gradients of the weights of one head, then of its scores and query.
TGFLOW_INLINE void head_backward(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                 int64_t row, Neighborhood& near, float* query) {
  float* score = near.score.data();
  float mean = 0;
  for (int64_t i = 0; i < near.count; ++i) {
    const int64_t slot = row * a.k + near.slot[i];
    const float keep = a.keep == nullptr ? 1 : a.keep[slot];
    slots.kept[slot] = g.weight[slot] * keep;
    score[i] = keep * (g.total[row] + dot_input(a, g.inputs + row * width(a), near, i));
    mean += g.weight[slot] * score[i];
  }
  for (int64_t i = 0; i < near.count; ++i) {
    const int64_t slot = row * a.k + near.slot[i];
    slots.score[slot] = score[i] = g.weight[slot] * (score[i] - mean);
  }
  add_inputs(a, query, score, near);
}

/// `shared_query` is the gradient of a shared query over this chunk, [H, D], or null.
TGFLOW_INLINE void backward_range(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                  int64_t begin, int64_t end, float* shared_query) {
  const int64_t d = width(a);
  Neighborhood near(a);
  for (int64_t n = begin; n < end; ++n) {
    gather(a, n, near);
    for (int64_t h = 0; h < a.num_heads; ++h) {
      const int64_t row = h * a.num_targets + n;
      float* query = a.shared_query ? shared_query + h * d : g.query + row * d;
      if (!a.shared_query) std::fill_n(query, d, 0.0f);
      head_backward(a, g, slots, row, near, query);
    }
  }
}

TGFLOW_AVX2 void backward_range_avx2(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                     int64_t begin, int64_t end, float* shared_query) {
  backward_range(a, g, slots, begin, end, shared_query);
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
  const int64_t d = width(a);
  std::vector<const float*> terms;
  std::vector<float> scale;
  for (int64_t f = begin; f < end; ++f) {
    terms.clear();
    scale.clear();
    for (int64_t i = rows.start[f]; i < rows.start[f + 1]; ++i) {
      const int64_t n = rows.slot[i] / a.k;
      const int64_t j = rows.slot[i] % a.k;
      for (int64_t h = 0; h < a.num_heads; ++h) {
        const int64_t row = h * a.num_targets + n;
        terms.insert(terms.end(), {g.inputs + row * d, query_of(a, h, n)});
        scale.insert(scale.end(), {slots.kept[row * a.k + j], slots.score[row * a.k + j]});
      }
    }
    std::fill_n(g.below + f * a.h_dim, a.h_dim, 0.0f);
    simd::add_rows(g.below + f * a.h_dim, terms.data(), scale.data(), terms.size(), a.h_dim);
  }
}

TGFLOW_AVX2 void below_range_avx2(const Attention& a, const AttentionGradients& g, const SlotGradients& slots,
                                  const SlotsOfRows& rows, int64_t begin, int64_t end) {
  below_range(a, g, slots, rows, begin, end);
}

/// out = the sum of `num_rows` rows, in order.
void sum_rows(const float* rows, int64_t num_rows, int64_t row_width, float* out) {
  std::fill_n(out, row_width, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < row_width; ++i) out[i] += rows[r * row_width + i];
  }
}

}  // namespace

void attend(const Attention& a, const AttentionOut& out) {
  const auto range = TGFLOW_HAS_AVX2() ? attend_range_avx2 : attend_range;
  const EdgeScores edges(a);
  parallel_for(num_chunks(a), 1, [&](int64_t begin, int64_t end) {
    range(a, edges, out, begin * kChunk, std::min(end * kChunk, a.num_targets));
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
    for (int64_t c = begin; c < end; ++c) {
      range(a, g, slots, c * kChunk, std::min((c + 1) * kChunk, a.num_targets), query.data() + c * shared);
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
