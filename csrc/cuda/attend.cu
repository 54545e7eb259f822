// Attention over sampled neighbors and its gradients: kernels by how many numbers a lane reads at once.
#include "tgflow/attention.hpp"
#include "tgflow/cuda/row_lists.hpp"
#include "tgflow/detail/cosine.hpp"

using namespace tgflow;

constexpr int kHeads = 2;  ///< Heads that share one pass over the inputs.
constexpr int kSlots = 4;  ///< Slots whose inputs are in flight at a time.

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

/// One number of each of a few heads.
template <typename real>
struct OfHeads {
  real at[kHeads];
};

/// A few heads' rows of an array [H, N, D].
template <typename real>
struct HeadRows {
  real* at[kHeads];
};

/// Which inputs a slot has: no neighbor, no inputs. A row that its table does not have makes them NaN, and
/// so the loss: nothing outside of the table is read, and nothing wrong stays unseen.
template <typename real>
struct Slot {
  int below;  ///< -1: not there.
  int edge;
  real dt;
  bool filled;

  __device__ static Slot at(const AttentionOf<real>& a, int64_t n, int64_t j) {
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
  __device__ Pack<real, kWidth> inputs(const AttentionOf<real>& a, int64_t i) const {
    using Inputs = Pack<real, kWidth>;
    if (!filled) return Inputs::filled(0);
    if (i < a.h_dim) return row_of<kWidth>(a.below, below, a.h_dim, i);
    if (i < a.h_dim + a.x_dim) return row_of<kWidth>(a.edge_table, edge, a.x_dim, i - a.h_dim);
    Inputs time;
    const real* frequency = a.frequency + (i - a.h_dim - a.x_dim);
    for (int w = 0; w < kWidth; ++w) {
      time.at[w] = cosine(static_cast<float>(frequency[w]), static_cast<float>(dt));
    }
    return time;
  }

 private:
  template <int kWidth>
  __device__ static Pack<real, kWidth> row_of(const real* table, int row, int64_t width, int64_t i) {
    if (row < 0) return Pack<real, kWidth>::filled(static_cast<real>(nanf("")));
    return Pack<real, kWidth>::load(table + row * width, i);
  }
};

template <typename real>
__device__ inline int64_t width_of(const AttentionOf<real>& a) {
  return a.h_dim + a.x_dim + a.time_dim;
}

/// The products of some heads' vectors with the inputs of 32 slots, each lane's being those of its own slot.
template <int kWidth, typename real>
__device__ inline OfHeads<real> dot_inputs(const AttentionOf<real>& a, const HeadRows<const real>& vectors,
                                           const Slot<real>& own, int num_slots) {
  const int lane = lane_index();
  const int64_t width = width_of(a);
  OfHeads<real> mine{};
  for (int first = 0; first < num_slots; first += kSlots) {
    Slot<real> slot[kSlots];
    real sum[kSlots][kHeads] = {};
    for (int s = 0; s < kSlots; ++s) slot[s] = own.from(first + s);  // 32 is a multiple of kSlots
    for (int64_t i = lane * kWidth; i < width; i += kWarp * kWidth) {
      Pack<real, kWidth> vector[kHeads];
      for (int h = 0; h < kHeads; ++h) vector[h] = Pack<real, kWidth>::load(vectors.at[h], i);
      for (int s = 0; s < kSlots; ++s) {
        const auto x = slot[s].template inputs<kWidth>(a, i);
        for (int h = 0; h < kHeads; ++h) {
          for (int w = 0; w < kWidth; ++w) sum[s][h] += vector[h].at[w] * x.at[w];
        }
      }
    }
    for (int s = 0; s < kSlots; ++s) {
      for (int h = 0; h < kHeads; ++h) {
        const real total = warp_sum(sum[s][h]);
        if (lane == first + s) mine.at[h] = total;
      }
    }
  }
  return mine;
}

/// rows = the sum of the lanes' scales times the inputs of their slots; added to what is there if `adds`.
template <int kWidth, typename real>
__device__ inline void sum_inputs(const AttentionOf<real>& a, const HeadRows<real>& rows, int num_heads,
                                  const Slot<real>& own, const OfHeads<real>& scale, int num_slots,
                                  bool adds) {
  using Sum = Pack<real, kWidth>;
  const int64_t width = width_of(a);
  for (int64_t first = 0; first < width; first += kWarp * kWidth) {  // all lanes, for they share
    const int64_t i = first + lane_index() * kWidth;
    const bool is_in = i < width;
    Sum sum[kHeads];
    for (int h = 0; h < kHeads; ++h) sum[h] = is_in && adds ? Sum::load(rows.at[h], i) : Sum::filled(0);
    for (int s = 0; s < num_slots; ++s) {
      const Slot<real> slot = own.from(s);
      real factor[kHeads];
      for (int h = 0; h < kHeads; ++h) factor[h] = from_lane(scale.at[h], s);
      if (!is_in || !slot.filled) continue;
      const Sum x = slot.template inputs<kWidth>(a, i);
      for (int h = 0; h < kHeads; ++h) sum[h].add(factor[h], x);
    }
    for (int h = 0; h < kHeads; ++h) {
      if (is_in && h < num_heads) sum[h].store(rows.at[h], i);
    }
  }
}

/// One target and a few of its heads: where a warp's lanes find what is theirs.
template <typename real>
struct TargetHeads {
  int64_t target;
  int64_t head;
  int num_heads;

  __device__ static TargetHeads at(const AttentionOf<real>& a, int64_t item) {
    const int64_t head = item / a.num_targets * kHeads;
    return {item % a.num_targets, head, static_cast<int>(min_of(a.num_heads - head, kHeads))};
  }
  /// Items that a launch has to do.
  __device__ static int64_t count(const AttentionOf<real>& a) {
    return (a.num_heads + kHeads - 1) / kHeads * a.num_targets;
  }
  /// A row of an array [H, N].
  __device__ int64_t row(const AttentionOf<real>& a, int h) const {
    return (head + h) * a.num_targets + target;
  }
  /// Its rows of an array [H, N, D] (or [H, 1, D]); the last head's again for one that does not exist.
  template <typename T>
  __device__ HeadRows<T> rows(const AttentionOf<real>& a, T* array, bool is_shared = false) const {
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

/// How many of 32 slots, one a lane, come before the last filled one and with it.
__device__ inline int num_used(bool filled) { return kWarp - __clz(__ballot_sync(kWholeWarp, filled)); }

template <int kWidth, typename real>
__device__ inline void attend_target(const AttentionOf<real>& a, const AttentionOutOf<real>& out,
                                     const TargetHeads<real>& at) {
  constexpr real kLowest = -3.402823466e38f;
  OfHeads<real> top = {{kLowest, kLowest}}, sum{}, total{};
  const auto query = at.rows(a, a.query, a.shared_query);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot<real>::at(a, at.target, j);
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
      real& weight = out.weight[at.row(a, h) * a.k + j];
      sum.at[h] += weight = filled ? exponential(weight - top.at[h]) : 0;
    }
  }
  for (int h = 0; h < kHeads; ++h) sum.at[h] = warp_sum(sum.at[h]);
  const auto inputs = at.rows(a, out.inputs);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot<real>::at(a, at.target, j);
    OfHeads<real> scale{};
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || !own.filled) continue;
      const int64_t slot = at.row(a, h) * a.k + j;
      const real weight = out.weight[slot] / sum.at[h];
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

/// What the backward pass leaves of each slot for the pass over `below`, [H, N, k] each.
template <typename real>
struct SlotGradientsOf {
  real* kept;   ///< weight * keep, 0 in empty slots.
  real* score;  ///< Gradient of the score, likewise.
};

/// Gradients of a target's weights, then of its scores and query. `g.query` is [H, N, D] in any case.
template <int kWidth, typename real>
__device__ inline void attend_target_backward(const AttentionOf<real>& a, const AttentionGradientsOf<real>& g,
                                              const SlotGradientsOf<real>& slots,
                                              const TargetHeads<real>& at) {
  OfHeads<real> mean{};
  const auto grad_inputs = at.rows(a, g.inputs);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot<real>::at(a, at.target, j);
    const auto gain = dot_inputs<kWidth>(a, grad_inputs, own, num_used(own.filled));
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || j >= a.k) continue;
      const int64_t row = at.row(a, h), slot = row * a.k + j;
      const real weight = own.filled ? g.weight[slot] : 0;
      const real keep = a.keep == nullptr ? 1 : a.keep[slot];
      const real score = own.filled ? keep * (g.total[row] + gain.at[h]) : 0;
      slots.kept[slot] = own.filled ? weight * keep : 0;
      slots.score[slot] = score;
      mean.at[h] += weight * score;
    }
  }
  for (int h = 0; h < kHeads; ++h) mean.at[h] = warp_sum(mean.at[h]);
  const auto query = at.rows(a, g.query);
  for (int64_t base = 0; base < a.k; base += kWarp) {
    const int64_t j = base + lane_index();
    const auto own = Slot<real>::at(a, at.target, j);
    OfHeads<real> scale{};
    for (int h = 0; h < kHeads; ++h) {
      if (h >= at.num_heads || !own.filled) continue;
      const int64_t slot = at.row(a, h) * a.k + j;
      scale.at[h] = g.weight[slot] * (slots.score[slot] - mean.at[h]);
      slots.score[slot] = scale.at[h];
    }
    sum_inputs<kWidth>(a, query, at.num_heads, own, scale, num_used(own.filled), base > 0);
  }
}

/// The gradient that a slot leaves to its row of `below`.
template <int kWidth, typename real>
struct BelowTerms {
  const AttentionOf<real>& a;
  const AttentionGradientsOf<real>& g;
  const SlotGradientsOf<real>& slots;

  __device__ void add(Pack<real, kWidth>& sum, int64_t s, int64_t i) const {
    using Numbers = Pack<real, kWidth>;
    const auto target = static_cast<uint32_t>(s) / static_cast<uint32_t>(a.k);  // there are below 2^31 slots
    const int64_t width = width_of(a), num_slots = a.num_targets * a.k;
    for (int64_t h = 0; h < a.num_heads; ++h) {
      const int64_t row = h * a.num_targets + target;
      sum.add(slots.kept[h * num_slots + s], Numbers::load(g.inputs + row * width, i));
      sum.add(slots.score[h * num_slots + s], Numbers::load(a.query + (a.shared_query ? h : row) * width, i));
    }
  }
};

template <int kWidth, typename real>
__device__ inline void attend_all(const AttentionOf<real>& a, const AttentionOutOf<real>& out) {
  using Item = TargetHeads<real>;
  for (int64_t i = warp_index(); i < Item::count(a); i += warp_count()) {
    attend_target<kWidth>(a, out, Item::at(a, i));
  }
}

template <int kWidth, typename real>
__device__ inline void attend_all_backward(const AttentionOf<real>& a, const AttentionGradientsOf<real>& g,
                                           const SlotGradientsOf<real>& slots) {
  using Item = TargetHeads<real>;
  for (int64_t i = warp_index(); i < Item::count(a); i += warp_count()) {
    attend_target_backward<kWidth>(a, g, slots, Item::at(a, i));
  }
}

template <int kWidth, typename real>
__device__ inline void attend_below(const AttentionOf<real>& a, const AttentionGradientsOf<real>& g,
                                    const SlotGradientsOf<real>& slots, const RowLists& lists) {
  sum_lists<real, kWidth>(lists, a.h_dim, BelowTerms<kWidth, real>{a, g, slots}, g.below);
}

using SlotGradients = SlotGradientsOf<float>;

extern "C" __global__ void __launch_bounds__(64) attend_by_4(Attention attention, AttentionOut out) {
  attend_all<4>(attention, out);
}
extern "C" __global__ void __launch_bounds__(64) attend_by_1(Attention attention, AttentionOut out) {
  attend_all<1>(attention, out);
}

/// Gradients of the slots and of the queries.
extern "C" __global__ void __launch_bounds__(64)
    attend_backward_by_4(Attention attention, AttentionGradients gradients, SlotGradients slots) {
  attend_all_backward<4>(attention, gradients, slots);
}
extern "C" __global__ void __launch_bounds__(64)
    attend_backward_by_1(Attention attention, AttentionGradients gradients, SlotGradients slots) {
  attend_all_backward<1>(attention, gradients, slots);
}

/// Gradients of the frontier below, by the lists of its rows' slots.
extern "C" __global__ void __launch_bounds__(256)
    attend_below_by_4(Attention attention, AttentionGradients gradients, SlotGradients slots,
                      RowLists lists) {
  attend_below<4>(attention, gradients, slots, lists);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_below_by_1(Attention attention, AttentionGradients gradients, SlotGradients slots,
                      RowLists lists) {
  attend_below<1>(attention, gradients, slots, lists);
}
