// How often the nodes of two sequences occur in each of them.
#pragma once

#include <cstdint>

namespace tgflow {

/// A sequence of nodes per row: the row's own node, and then up to `k` others.
struct Sequences {
  int64_t num_rows;
  int64_t k;
  const int64_t* self;   ///< [N]
  const int64_t* other;  ///< [N, k]
  const bool* mask;      ///< [N, k]: which of the others are there.
};

/// For each pair of rows and each token of both sequences, the own node first: how often its node occurs in
/// the source's sequence and in the destination's. A token that is not there has zeros.
/// `out` is [num_pairs, 2 sides, 1 + k, 2 counts]; rows are below `num_rows`.
void co_occurrence(const Sequences& sequences, const int64_t* src_row, const int64_t* dst_row,
                   int64_t num_pairs, int32_t* out);

}  // namespace tgflow
