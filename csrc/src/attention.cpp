#include "tgflow/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "tgflow/detail/simd.hpp"
#include "tgflow/radix_sort.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kChunk = 32;        // targets per thread and step, which share partial sums
constexpr int64_t kGrainEdges = 512;  // least work for another thread

int64_t width(const Attention& a) { return a.h_dim + a.x_dim + a.time_dim; }
int64_t num_chunks(const Attention& a) { return (a.num_targets + kChunk - 1) / kChunk; }

TGFLOW_INLINE const float* query_of(const Attention& a, int64_t head, int64_t target) {
  const int64_t row = a.shared_query ? head : head * a.num_targets + target;
  return a.query + row * (a.h_dim + a.x_dim + a.time_dim);
}

/// One of the parts that are concatenated in the neighbors' inputs.
struct Part {
  const float* const* rows;  ///< Row of each neighbor, [count].
  int64_t first, size;       ///< Columns.
};

/// The filled slots of one target, compacted, and the parts of their inputs.
struct Neighborhood {
  int64_t count = 0;
  std::vector<int64_t> slot;        ///< Slot of each neighbor, [count].
  std::vector<const float*> below;  ///< Empty if the part is absent.
  std::vector<const float*> edge_x;
  std::vector<int64_t> edge_row;  ///< Rows of the edge table.
  std::vector<const float*> time;
  std::vector<float> encoding;      ///< [k, time_dim].
  std::vector<const float*> query;  ///< Factor of the inputs per head, [H].
  std::vector<float*> sum;          ///< Sum of the inputs per head, [H].
  std::vector<float> score;         ///< Score of each head and neighbor, [H, k].
  std::vector<Part> parts;          ///< In the order of summation: time, below, edge_x.

  explicit Neighborhood(const Attention& a)
      : slot(a.k),
        below(a.k),
        edge_x(a.k),
        edge_row(a.k),
        time(a.k),
        encoding(a.k * a.time_dim),
        query(a.num_heads),
        sum(a.num_heads),
        score(a.num_heads * a.k) {
    parts.push_back({time.data(), a.h_dim + a.x_dim, a.time_dim});
    if (a.h_dim > 0) parts.push_back({below.data(), 0, a.h_dim});
    if (a.x_dim > 0) parts.push_back({edge_x.data(), a.h_dim, a.x_dim});
  }
  Neighborhood(const Neighborhood&) = delete;  // parts point into it
  Neighborhood& operator=(const Neighborhood&) = delete;
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
      // Prefetches a row of the next target during this one: a few at a time, as few can be in
      // flight.
      if (n + 1 < a.num_targets) simd::prefetch(a.edge_table + a.edge_row[s + a.k] * a.x_dim, a.x_dim);
    }
    float* encoding = near.encoding.data() + i * a.time_dim;
    simd::cosines(encoding, a.frequency, a.dt[s], a.time_dim);
    near.time[i] = encoding;
  }
}

/// q . edge_x of each row of the edge table and each head, [R, H], if all targets have the same query. As
/// events recur in a batch, these are fewer products than one per slot, with equal results. Else empty.
using EdgeScores = std::vector<float>;

struct ScoreEdges {
  template <typename Level>
  TGFLOW_INLINE static void run(const Attention& a, float* out, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.edge_table + r * a.x_dim;
      for (int64_t h = 0; h < a.num_heads; ++h) {
        out[r * a.num_heads + h] = simd::dot<Level>(query_of(a, h, 0) + a.h_dim, x, a.x_dim);
      }
    }
  }
};

EdgeScores edge_scores(const Attention& a) {
  if (!a.shared_query || a.x_dim == 0 || a.num_edges >= a.num_targets * a.k) return {};
  EdgeScores known(static_cast<size_t>(a.num_edges * a.num_heads));
  parallel_for(a.num_edges, kGrainEdges,
               [&](int64_t begin, int64_t end) { simd::run<ScoreEdges>(a, known.data(), begin, end); });
  return known;
}

/// Adds the products of `kHeads` heads' queries, from head `h` on, with one part of the inputs to the scores.
template <typename Level, int kHeads>
TGFLOW_INLINE void add_products(Neighborhood& near, const Part& part, int64_t k, int64_t h) {
  constexpr int kAtOnce = Level::kLanes / 8;  // neighbors: as many sums as fit in registers
  const float* query[kHeads];
  for (int r = 0; r < kHeads; ++r) query[r] = near.query[h + r] + part.first;
  float product[kHeads * kAtOnce];
  float* score = near.score.data() + h * k;
  int64_t i = 0;
  for (; i + kAtOnce <= near.count; i += kAtOnce) {
    simd::dots<Level, kHeads, kAtOnce>(query, part.rows + i, part.size, product);
    for (int r = 0; r < kHeads; ++r) {
      for (int c = 0; c < kAtOnce; ++c) score[r * k + i + c] += product[r * kAtOnce + c];
    }
  }
  for (; i < near.count; ++i) {
    simd::dots<Level, kHeads, 1>(query, part.rows + i, part.size, product);
    for (int r = 0; r < kHeads; ++r) score[r * k + i] += product[r];
  }
}

/// Sets the scores to the products of the heads' queries with the first `num_parts` parts of the inputs.
template <typename Level>
TGFLOW_INLINE void multiply_inputs(const Attention& a, Neighborhood& near, size_t num_parts) {
  std::fill(near.score.begin(), near.score.end(), 0.0f);
  for (size_t p = 0; p < num_parts; ++p) {
    int64_t h = 0;
    for (; h + 2 <= a.num_heads; h += 2) add_products<Level, 2>(near, near.parts[p], a.k, h);
    if (h < a.num_heads) add_products<Level, 1>(near, near.parts[p], a.k, h);
  }
}

/// Adds one part of the inputs, times the scores of `kHeads` heads from head `h` on, to those heads' sums.
template <typename Level, int kHeads>
TGFLOW_INLINE void add_part(const Neighborhood& near, const Part& part, int64_t k, int64_t h) {
  float* sum[kHeads];
  const float* score[kHeads];
  for (int r = 0; r < kHeads; ++r) {
    sum[r] = near.sum[h + r] + part.first;
    score[r] = near.score.data() + (h + r) * k;
  }
  simd::add_rows<Level, kHeads>(sum, part.rows, score, near.count, part.size);
}

/// Adds the inputs, times the scores, to the heads' sums.
template <typename Level>
TGFLOW_INLINE void add_inputs(const Attention& a, const Neighborhood& near) {
  for (const Part& part : near.parts) {
    int64_t h = 0;
    for (; h + 2 <= a.num_heads; h += 2) add_part<Level, 2>(near, part, a.k, h);
    if (h < a.num_heads) add_part<Level, 1>(near, part, a.k, h);
  }
}

/// Turns scores into their softmax.
TGFLOW_INLINE void softmax(float* score, int64_t count) {
  float top = -INFINITY;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, score[i]);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += score[i] = std::exp(score[i] - top);
  for (int64_t i = 0; i < count; ++i) score[i] /= sum;
}

/// Turns a head's scores into weights, in place, and the weights times `keep`.
TGFLOW_INLINE void weigh(const Attention& a, const AttentionOut& out, int64_t row, const Neighborhood& near,
                         float* score) {
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
}

template <typename Level>
TGFLOW_INLINE void attend_target(const Attention& a, const EdgeScores& known, const AttentionOut& out,
                                 int64_t n, Neighborhood& near) {
  const int64_t d = width(a);
  gather(a, n, near);
  for (int64_t h = 0; h < a.num_heads; ++h) near.query[h] = query_of(a, h, n);
  multiply_inputs<Level>(a, near, near.parts.size() - (known.empty() ? 0 : 1));
  for (int64_t h = 0; h < a.num_heads; ++h) {
    const int64_t row = h * a.num_targets + n;
    float* score = near.score.data() + h * a.k;
    for (int64_t i = 0; i < near.count && !known.empty(); ++i) {
      score[i] += known[static_cast<size_t>(near.edge_row[i] * a.num_heads + h)];
    }
    weigh(a, out, row, near, score);
    near.sum[h] = out.inputs + row * d;
    std::fill_n(near.sum[h], d, 0.0f);
  }
  add_inputs<Level>(a, near);
}

struct AttendRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const Attention& a, const EdgeScores& known, const AttentionOut& out,
                                int64_t begin, int64_t end) {
    Neighborhood near(a);
    for (int64_t n = begin; n < end; ++n) attend_target<Level>(a, known, out, n, near);
  }
};

int64_t table_width(const ProjectedAttention& a) { return a.num_heads * (a.key_dim + a.value_dim); }

/// Whether two targets have the same neighbors.
bool has_same_slots(const ProjectedAttention& a, int64_t n, int64_t other) {
  const auto is_equal = [&](const auto* column) {
    const auto size = sizeof(*column) * static_cast<size_t>(a.k);
    return column == nullptr || std::memcmp(column + n * a.k, column + other * a.k, size) == 0;
  };
  return is_equal(a.mask) && is_equal(a.neighbor) && is_equal(a.edge_row);
}

/// The sum of a slot's rows of both tables.
TGFLOW_INLINE void join_rows(const ProjectedAttention& a, int64_t slot, float* out) {
  const int64_t size = table_width(a);
  std::fill_n(out, size, 0.0f);
  for (const auto& [table, row] : {std::pair{a.below, a.neighbor}, std::pair{a.edges, a.edge_row}}) {
    if (table == nullptr) continue;  // a condition within the loop would load from null under a mask: slow
    const float* const from = table + row[slot] * size;
    for (int64_t i = 0; i < size; ++i) out[i] += from[i];
  }
}

/// Computes the targets `order[begin]` to `order[end - 1]`.
struct ProjectedRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const ProjectedAttention& a, const Attention& time, const ProjectedOut& out,
                                const int64_t* order, int64_t begin, int64_t end) {
    const int64_t heads = a.num_heads, size = table_width(a);
    Neighborhood near(time);
    std::vector<float> joined(a.k * size), known(heads * a.k);  // of the neighbors of the last target
    std::vector<const float*> value(a.k);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = order[i], q = a.query_row[n];
      const bool is_same = i > begin && has_same_slots(a, n, order[i - 1]);
      const bool is_known = is_same && q == a.query_row[order[i - 1]];
      gather(time, n, near);
      for (int64_t j = 0; j < near.count && !is_same; ++j) {
        join_rows(a, n * a.k + near.slot[j], joined.data() + j * size);
      }
      for (int64_t h = 0; h < heads; ++h) {
        const float* const query = a.query + (h * a.num_queries + q) * a.key_dim;
        for (int64_t j = 0; j < near.count && !is_known; ++j) {
          known[h * a.k + j] = simd::dot<Level>(query, joined.data() + j * size + h * a.key_dim, a.key_dim);
        }
        near.query[h] = a.time_query + (h * a.num_queries + q) * a.time_dim;
        near.sum[h] = out.time + (n * heads + h) * a.time_dim;
        std::fill_n(near.sum[h], a.time_dim, 0.0f);
      }
      multiply_inputs<Level>(time, near, near.parts.size());
      float* const sum = out.value + n * a.value_dim;
      for (int64_t c = 0; c < a.value_dim && near.count > 0; ++c) sum[c] += a.bias[c];
      for (int64_t h = 0; h < heads; ++h) {
        float* const score = near.score.data() + h * a.k;
        for (int64_t j = 0; j < near.count; ++j) {
          score[j] += known[h * a.k + j];
          value[j] = joined.data() + j * size + heads * a.key_dim + h * a.value_dim;
        }
        softmax(score, near.count);
        simd::add_rows<Level, 1>(&sum, value.data(), &score, near.count, a.value_dim);
      }
      add_inputs<Level>(time, near);
    }
  }
};

/// Gradients of each slot for the pass over `below`, [H, N, k] each.
struct SlotGradients {
  std::vector<float> kept;   ///< weight * keep
  std::vector<float> score;  ///< gradient of the score
};

/// Turns the products with a head's gradient, in the scores, into the gradients of its scores.
TGFLOW_INLINE void weigh_backward(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                  int64_t row, const Neighborhood& near, float* score) {
  float mean = 0;
  for (int64_t i = 0; i < near.count; ++i) {
    const int64_t slot = row * a.k + near.slot[i];
    const float keep = a.keep == nullptr ? 1 : a.keep[slot];
    slots.kept[slot] = g.weight[slot] * keep;
    score[i] = keep * (g.total[row] + score[i]);
    mean += g.weight[slot] * score[i];
  }
  for (int64_t i = 0; i < near.count; ++i) {
    const int64_t slot = row * a.k + near.slot[i];
    slots.score[slot] = score[i] = g.weight[slot] * (score[i] - mean);
  }
}

/// `shared_query` is the gradient of a shared query over this chunk, [H, D], or null.
struct BackwardRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const Attention& a, const AttentionGradients& g, SlotGradients& slots,
                                int64_t begin, int64_t end, float* shared_query) {
    const int64_t d = width(a);
    Neighborhood near(a);
    for (int64_t n = begin; n < end; ++n) {
      gather(a, n, near);
      for (int64_t h = 0; h < a.num_heads; ++h) {
        const int64_t row = h * a.num_targets + n;
        near.query[h] = g.inputs + row * d;
        near.sum[h] = a.shared_query ? shared_query + h * d : g.query + row * d;
        if (!a.shared_query) std::fill_n(near.sum[h], d, 0.0f);
      }
      multiply_inputs<Level>(a, near, near.parts.size());
      for (int64_t h = 0; h < a.num_heads; ++h) {
        weigh_backward(a, g, slots, h * a.num_targets + n, near, near.score.data() + h * a.k);
      }
      add_inputs<Level>(a, near);
    }
  }
};

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
  return rows;  // each start has moved to the end of its row, the next row's start
}

struct BelowRange {
  template <typename Level>
  TGFLOW_INLINE static void run(const Attention& a, const AttentionGradients& g, const SlotGradients& slots,
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
      float* const sum = g.below + f * a.h_dim;
      const float* const scales = scale.data();
      std::fill_n(sum, a.h_dim, 0.0f);
      simd::add_rows<Level, 1>(&sum, terms.data(), &scales, terms.size(), a.h_dim);
    }
  }
};

/// out = the sum of `num_rows` rows, in order.
void sum_rows(const float* rows, int64_t num_rows, int64_t row_width, float* out) {
  std::fill_n(out, row_width, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < row_width; ++i) out[i] += rows[r * row_width + i];
  }
}

}  // namespace

void attend(const Attention& a, const AttentionOut& out) {
  const EdgeScores known = edge_scores(a);
  parallel_for(num_chunks(a), 1, [&](int64_t begin, int64_t end) {
    simd::run<AttendRange>(a, known, out, begin * kChunk, std::min(end * kChunk, a.num_targets));
  });
}

void attend_projected(const ProjectedAttention& a, const ProjectedOut& out) {
  std::vector<int64_t> order(a.num_targets), other;
  std::iota(order.begin(), order.end(), 0);
  radix_sort(order, other, [&](int64_t n) { return static_cast<uint32_t>(a.eid[n * a.k] + 1); });
  Attention time{};  // the part of the inputs that is not projected
  time.k = a.k, time.num_heads = a.num_heads, time.time_dim = a.time_dim;
  time.mask = a.mask, time.dt = a.dt, time.frequency = a.frequency;
  parallel_for(a.num_targets, kChunk, [&](int64_t begin, int64_t end) {
    simd::run<ProjectedRange>(a, time, out, order.data(), begin, end);
  });
}

void attend_backward(const Attention& a, const AttentionGradients& g) {
  const int64_t size = a.num_heads * a.num_targets * a.k;
  const int64_t shared = a.shared_query ? a.num_heads * width(a) : 0;
  SlotGradients slots{std::vector<float>(size), std::vector<float>(size)};
  std::vector<float> query(num_chunks(a) * shared);
  parallel_for(num_chunks(a), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      simd::run<BackwardRange>(a, g, slots, c * kChunk, std::min((c + 1) * kChunk, a.num_targets),
                               query.data() + c * shared);
    }
  });
  if (a.shared_query) sum_rows(query.data(), num_chunks(a), shared, g.query);
  if (a.h_dim == 0) return;
  const SlotsOfRows rows = slots_of_rows(a);
  parallel_for(a.num_below, kChunk,
               [&](int64_t begin, int64_t end) { simd::run<BelowRange>(a, g, slots, rows, begin, end); });
}

}  // namespace tgflow
