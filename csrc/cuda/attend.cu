// Attention over sampled neighbors and its gradients: one kernel per number of elements a lane reads at once.
#include "tgflow/attention.hpp"
#include "tgflow/cuda/row_lists.hpp"
#include "tgflow/detail/cosine.hpp"

using namespace tgflow;

constexpr int kHeads = 2;  ///< Heads that share one pass over the inputs.
constexpr int kSlots = 4;  ///< Slots whose inputs are in flight at a time.

/// One number per head, for a few heads.
struct OfHeads {
  float at[kHeads];
};

/// A few heads' rows of an array [H, N, D].
template <typename T>
struct HeadRows {
  T* at[kHeads];
};

/// Inputs of a slot; none without a neighbor. A row outside of its table makes them NaN, and
/// so the loss: nothing outside of the table is read, and no error stays hidden.
struct Slot {
  int below;  ///< -1: missing.
  int edge;
  float dt;
  bool filled;

  __device__ static Slot at(const Attention& a, int64_t n, int64_t j) {
    const int64_t s = n * a.k + j;
    Slot slot{-1, -1, 0, j < a.k && a.mask[s]};
    if (!slot.filled) return slot;
    slot.dt = a.dt[s];
    if (a.h_dim > 0) slot.below = checked(a.neighbor[s], a.num_below);
    if (a.x_dim > 0) slot.edge = checked(a.edge_row[s], a.num_edges);
    return slot;
  }
  __device__ static int checked(int64_t row, int64_t num_rows) {
    return static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows) ? static_cast<int>(row) : -1;
  }
  __device__ Slot from(int lane) const {
    return {from_lane(below, lane), from_lane(edge, lane), from_lane(dt, lane),
            from_lane(static_cast<int>(filled), lane) != 0};
  }
  /// Its inputs from column `i` on; a pack lies within one part.
  template <int kWidth>
  __device__ Pack<kWidth> inputs(const Attention& a, int64_t i) const {
    using Inputs = Pack<kWidth>;
    if (!filled) return Inputs::filled(0);
    if (i < a.h_dim) return row_of<kWidth>(a.below, below, a.h_dim, i);
    if (i < a.h_dim + a.x_dim) return row_of<kWidth>(a.edge_table, edge, a.x_dim, i - a.h_dim);
    Inputs time;
    const float* frequency = a.frequency + (i - a.h_dim - a.x_dim);
    for (int w = 0; w < kWidth; ++w) {
      time.at[w] = cosine(frequency[w], dt);
    }
    return time;
  }

 private:
  template <int kWidth>
  __device__ static Pack<kWidth> row_of(const float* table, int row, int64_t width, int64_t i) {
    if (row < 0) return Pack<kWidth>::filled(nanf(""));
    return Pack<kWidth>::load(table + row * width, i);
  }
};

__device__ inline int64_t width_of(const Attention& a) { return a.h_dim + a.x_dim + a.time_dim; }

/// Products of some heads' vectors with the inputs of 32 slots; each lane has its own slot's.
template <int kWidth>
__device__ inline OfHeads dot_inputs(const Attention& a, const HeadRows<const float>& vectors,
                                     const Slot& own, int num_slots) {
  const int lane = lane_index();
  const int64_t width = width_of(a);
  OfHeads mine{};
  for (int first = 0; first < num_slots; first += kSlots) {
    Slot slot[kSlots];
    float sum[kSlots][kHeads] = {};
    for (int s = 0; s < kSlots; ++s) slot[s] = own.from(first + s);  // 32 is a multiple of kSlots
    for (int64_t i = lane * kWidth; i < width; i += kWarp * kWidth) {
      Pack<kWidth> vector[kHeads];
      for (int h = 0; h < kHeads; ++h) vector[h] = Pack<kWidth>::load(vectors.at[h], i);
      for (int s = 0; s < kSlots; ++s) {
        const auto x = slot[s].inputs<kWidth>(a, i);
        for (int h = 0; h < kHeads; ++h) {
          for (int w = 0; w < kWidth; ++w) sum[s][h] += vector[h].at[w] * x.at[w];
        }
      }
    }
    for (int s = 0; s < kSlots; ++s) {
      for (int h = 0; h < kHeads; ++h) {
        const float total = warp_sum(sum[s][h]);
        if (lane == first + s) mine.at[h] = total;
      }
    }
  }
  return mine;
}

/// rows = sum over lanes of scale times the inputs of the lane's slot; accumulated if `adds`.
template <int kWidth>
__device__ inline void sum_inputs(const Attention& a, const HeadRows<float>& rows, int num_heads,
                                  const Slot& own, const OfHeads& scale, int num_slots, bool adds) {
  using Sum = Pack<kWidth>;
  const int64_t width = width_of(a);
  for (int64_t first = 0; first < width; first += kWarp * kWidth) {  // all lanes: they share
    const int64_t i = first + lane_index() * kWidth;
    const bool is_in = i < width;
    Sum sum[kHeads];
    for (int h = 0; h < kHeads; ++h) sum[h] = is_in && adds ? Sum::load(rows.at[h], i) : Sum::filled(0);
    for (int s = 0; s < num_slots; ++s) {
      const Slot slot = own.from(s);
      float factor[kHeads];
      for (int h = 0; h < kHeads; ++h) factor[h] = from_lane(scale.at[h], s);
      if (!is_in || !slot.filled) continue;
      const Sum x = slot.inputs<kWidth>(a, i);
      for (int h = 0; h < kHeads; ++h) sum[h].add(factor[h], x);
    }
    for (int h = 0; h < kHeads; ++h) {
      if (is_in && h < num_heads) sum[h].store(rows.at[h], i);
    }
  }
}

/// One target and a few of its heads: addresses for a warp's lanes.
struct TargetHeads {
  int64_t target;
  int64_t head;
  int num_heads;

  __device__ static TargetHeads at(const Attention& a, int64_t item) {
    const int64_t head = item / a.num_targets * kHeads;
    return {item % a.num_targets, head, static_cast<int>(min_of(a.num_heads - head, kHeads))};
  }
  /// Number of items of a launch.
  __device__ static int64_t count(const Attention& a) {
    return (a.num_heads + kHeads - 1) / kHeads * a.num_targets;
  }
  /// A row of an array [H, N].
  __device__ int64_t row(const Attention& a, int h) const { return (head + h) * a.num_targets + target; }
  /// Its rows of an array [H, N, D] (or [H, 1, D]); the last head's again for a missing one.
  template <typename T>
  __device__ HeadRows<T> rows(const Attention& a, T* array, bool is_shared = false) const {
    HeadRows<T> rows;
    for (int h = 0; h < kHeads; ++h) {
      const int own = h < num_heads ? h : num_heads - 1;
      rows.at[h] = array + (is_shared ? head + own : row(a, own)) * width_of(a);
    }
    return rows;
  }

 private:
  __device__ static int64_t min_of(int64_t x, int64_t y) { return x < y ? x : y; }
};

/// Number of 32 slots, one per lane, up to and including the last filled one.
__device__ inline int num_used(bool filled) { return kWarp - __clz(__ballot_sync(kWholeWarp, filled)); }

template <int kWidth>
__device__ inline void attend_target(const Attention& a, const AttentionOut& out, const TargetHeads& at) {
  constexpr float kLowest = -3.402823466e38f;
  OfHeads top = {{kLowest, kLowest}}, sum{}, total{};
  const auto query = at.rows(a, a.query, a.shared_query);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot::at(a, at.target, j);
    const auto score = dot_inputs<kWidth>(a, query, own, num_used(own.filled));
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || !own.filled) continue;
      out.weight[at.row(a, h) * a.k + j] = score.at[h];
      top.at[h] = score.at[h] > top.at[h] ? score.at[h] : top.at[h];
    }
  }
  for (int h = 0; h < kHeads; ++h) top.at[h] = warp_max(top.at[h]);
  for (int64_t j = lane_index(); j < a.k; j += kWarp) {
    const bool filled = a.mask[at.target * a.k + j];
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads) continue;
      float& weight = out.weight[at.row(a, h) * a.k + j];
      sum.at[h] += weight = filled ? expf(weight - top.at[h]) : 0;
    }
  }
  for (int h = 0; h < kHeads; ++h) sum.at[h] = warp_sum(sum.at[h]);
  const auto inputs = at.rows(a, out.inputs);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot::at(a, at.target, j);
    OfHeads scale{};
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || !own.filled) continue;
      const int64_t slot = at.row(a, h) * a.k + j;
      const float weight = out.weight[slot] / sum.at[h];
      out.weight[slot] = weight;
      scale.at[h] = a.keep == nullptr ? weight : weight * a.keep[slot];
      total.at[h] += scale.at[h];
    }
    sum_inputs<kWidth>(a, inputs, at.num_heads, own, scale, num_used(own.filled), base > 0);
  }
  for (int h = 0; h < kHeads; ++h) {
    total.at[h] = warp_sum(total.at[h]);
    if (h < at.num_heads && lane_index() == 0) out.total[at.row(a, h)] = total.at[h];
  }
}

/// Gradients of each slot for the pass over `below`, [H, N, k] each.
struct SlotGradients {
  float* kept;   ///< weight * keep, 0 in empty slots.
  float* score;  ///< Gradient of the score, likewise.
};

/// Gradients of a target's weights, then of its scores and query. `g.query` is [H, N, D] in any case.
template <int kWidth>
__device__ inline void attend_target_backward(const Attention& a, const AttentionGradients& g,
                                              const SlotGradients& slots, const TargetHeads& at) {
  OfHeads mean{};
  const auto grad_inputs = at.rows(a, g.inputs);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot::at(a, at.target, j);
    const auto gain = dot_inputs<kWidth>(a, grad_inputs, own, num_used(own.filled));
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || j >= a.k) continue;
      const int64_t row = at.row(a, h), slot = row * a.k + j;
      const float weight = own.filled ? g.weight[slot] : 0;
      const float keep = a.keep == nullptr ? 1 : a.keep[slot];
      const float score = own.filled ? keep * (g.total[row] + gain.at[h]) : 0;
      slots.kept[slot] = own.filled ? weight * keep : 0;
      slots.score[slot] = score;
      mean.at[h] += weight * score;
    }
  }
  for (int h = 0; h < kHeads; ++h) mean.at[h] = warp_sum(mean.at[h]);
  const auto query = at.rows(a, g.query);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot::at(a, at.target, j);
    OfHeads scale{};
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || !own.filled) continue;
      const int64_t slot = at.row(a, h) * a.k + j;
      scale.at[h] = g.weight[slot] * (slots.score[slot] - mean.at[h]);
      slots.score[slot] = scale.at[h];
    }
    sum_inputs<kWidth>(a, query, at.num_heads, own, scale, num_used(own.filled), base > 0);
  }
}

/// The gradient of a slot with respect to its row of `below`.
template <int kWidth>
struct BelowTerms {
  const Attention& a;
  const AttentionGradients& g;
  const SlotGradients& slots;

  __device__ void add(Pack<kWidth>& sum, int64_t s, int64_t i) const {
    using Numbers = Pack<kWidth>;
    const auto target = static_cast<uint32_t>(s) / static_cast<uint32_t>(a.k);  // fewer than 2^31 slots
    const int64_t width = width_of(a), num_slots = a.num_targets * a.k;
    for (int64_t h = 0; h < a.num_heads; ++h) {
      const int64_t row = h * a.num_targets + target;
      sum.add(slots.kept[h * num_slots + s], Numbers::load(g.inputs + row * width, i));
      sum.add(slots.score[h * num_slots + s], Numbers::load(a.query + (a.shared_query ? h : row) * width, i));
    }
  }
};

/// Calls `work` for the targets and heads of each warp.
template <typename Work>
__device__ inline void for_targets(const Attention& a, const Work& work) {
  for (int64_t i = warp_index(); i < TargetHeads::count(a); i += warp_count()) work(TargetHeads::at(a, i));
}

template <int kWidth>
__device__ inline void attend(const Attention& a, const AttentionOut& out) {
  for_targets(a, [&](const TargetHeads& at) { attend_target<kWidth>(a, out, at); });
}

/// Gradients of the slots and of the queries.
template <int kWidth>
__device__ inline void attend_backward(const Attention& a, const AttentionGradients& gradients,
                                       const SlotGradients& slots) {
  for_targets(a, [&](const TargetHeads& at) { attend_target_backward<kWidth>(a, gradients, slots, at); });
}

/// Gradients of the frontier below, using the lists of its rows' slots.
template <int kWidth>
__device__ inline void attend_below(const Attention& a, const AttentionGradients& gradients,
                                    const SlotGradients& slots, const RowLists& lists) {
  sum_lists<kWidth>(lists, a.h_dim, BelowTerms<kWidth>{a, gradients, slots}, gradients.below);
}

KERNELS_BY_WIDTH(64, attend, (Attention a, AttentionOut out), (a, out))
KERNELS_BY_WIDTH(64, attend_backward, (Attention a, AttentionGradients grad, SlotGradients slots),
                 (a, grad, slots))
KERNELS_BY_WIDTH(256, attend_below,
                 (Attention a, AttentionGradients grad, SlotGradients slots, RowLists lists),
                 (a, grad, slots, lists))
