// Attention over sampled neighbors in input space: softmax-weighted sums of [h | edge_x | time], per head.
// Kernels take these structs too: no `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// Inputs of both passes. An absent part (no node inputs, no edge features) has width 0 and null pointers.
/// Slots are [N, k] in row-major order; per-head arrays are [H, N, ...].
struct Attention {
  int64_t num_targets;
  int64_t k;
  int64_t num_heads;
  const float* query;  ///< [H, N, D], or [H, 1, D] if `shared_query`; D = h_dim + x_dim + time_dim.
  bool shared_query;   ///< Whether all targets have the same query.
  const float* below;  ///< [F, h_dim]: the frontier below.
  int64_t num_below;   ///< F.
  int64_t h_dim;
  const int64_t* neighbor;  ///< Rows of `below`.
  const float* edge_table;  ///< [R, x_dim].
  int64_t num_edges;        ///< R.
  int64_t x_dim;
  const int64_t* edge_row;  ///< Rows of `edge_table`.
  const bool* mask;         ///< Whether a slot holds a neighbor.
  const float* dt;          ///< Seconds.
  const float* frequency;   ///< [time_dim].
  int64_t time_dim;
  const float* keep;  ///< [H, N, k]: factors of the weights after the softmax, or null for 1.
};

struct AttentionOut {
  float* weight;  ///< [H, N, k]: the softmax, 0 in empty slots.
  float* inputs;  ///< [H, N, D]: sums of weight * keep * input.
  float* total;   ///< [H, N]: sums of weight * keep.
};

struct AttentionGradients {
  const float* weight;  ///< [H, N, k], after `attend`.
  const float* inputs;  ///< [H, N, D]: gradient with respect to `AttentionOut::inputs`.
  const float* total;   ///< [H, N]: gradient with respect to `AttentionOut::total`.
  float* query;         ///< Like `Attention::query`.
  float* below;         ///< [F, h_dim].
};

/// Attention without gradients over keys and values that were projected once per row of the frontier below
/// and of the edge table: a slot's are the sums of both rows. Slots are [N, k] in row-major order.
struct ProjectedAttention {
  int64_t num_targets;
  int64_t k, num_heads, key_dim, value_dim, time_dim;
  const int64_t* query_row;  ///< Query of each target, [N].
  int64_t num_queries;       ///< Q.
  const float* query;        ///< Factor of the keys, [H, Q, key_dim].
  const float* time_query;   ///< Factor of the time encodings, [H, Q, time_dim].
  const float* below;  ///< [F, H * (key_dim + value_dim)]: keys of all heads, then values; or null for zeros.
  const int64_t* neighbor;  ///< Rows of `below`.
  const float* edges;       ///< [R, H * (key_dim + value_dim)], likewise.
  const int64_t* edge_row;  ///< Rows of `edges`.
  const float* bias;        ///< Part of all values, [value_dim].
  const int64_t* eid;       ///< Events of the neighbors: targets with the same newest one are done in turn.
  const bool* mask;
  const float* dt;
  const float* frequency;  ///< [time_dim].
};

struct ProjectedOut {
  float* time;   ///< [N, H, time_dim]: sums of weight * time encoding.
  float* value;  ///< [N, value_dim]: the sums of weight * value of all heads are added.
};

/// Fills `out`. The same bits for a target among any others and at any number of threads.
void attend_projected(const ProjectedAttention& attention, const ProjectedOut& out);

/// Fills `out`. The same bits at any number of threads.
void attend(const Attention& attention, const AttentionOut& out);

/// Fills the gradients: sums run in one order, so the bits are the same at any number of threads.
void attend_backward(const Attention& attention, const AttentionGradients& gradients);

}  // namespace tgflow
