// How the temporal walks of two nodes overlap: inner products of their projections (arXiv:2410.04013).
#pragma once

#include <cstdint>

namespace tgflow {

/// Projections of nodes' walks: of those without events, and of those with 1, ..., `hops` of them.
struct WalkRows {
  int64_t num_rows;
  int64_t dim;
  int64_t hops;
  const float* base;   ///< [N, dim]
  const float* state;  ///< [N, hops * dim], by hops; as of some time of each row.
};

/// Pairs of rows, each with what is left of its walks of one event; of those of l events it is the l-th
/// power.
struct WalkPairs {
  int64_t num_pairs;
  const int64_t* a;  ///< [P], negative for a pair that is not there.
  const int64_t* b;  ///< [P]
  const float* decay_a;
  const float* decay_b;
};

/// Products per pair: those of 2 * (hops + 1) projections, each with each and with itself.
constexpr int64_t num_walk_products(int64_t hops) { return (hops + 1) * (2 * hops + 3); }

/// log(1 + max(x, 0)) of the inner products x of the projections [a's, b's] of each pair with each other: the
/// upper triangle, row by row, [P, num_walk_products(hops)]. Zeros for a pair that is not there.
void walk_features(const WalkRows& rows, const WalkPairs& pairs, float* out);

}  // namespace tgflow
