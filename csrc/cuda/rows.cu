// The gradient of indexing rows: sums of the gradients for each row.
#include "tgflow/cuda/row_lists.hpp"

using namespace tgflow;

/// Struct of tgflow/cuda/row_lists.py.
struct PickedRows {
  const float* rows;  ///< [number of slots, width].
  int64_t width;
  float* out;  ///< [num_rows, width].
};

template <int kWidth>
struct PickedTerms {
  const PickedRows& picked;

  __device__ void add(Pack<kWidth>& sum, int64_t slot, int64_t i) const {
    sum.add(1, Pack<kWidth>::load(picked.rows + slot * picked.width, i));
  }
};

template <int kWidth>
__device__ inline void sum_rows(const PickedRows& picked, const RowLists& lists) {
  sum_lists<kWidth>(lists, picked.width, PickedTerms<kWidth>{picked}, picked.out);
}

KERNELS_BY_WIDTH(256, sum_rows, (PickedRows picked, RowLists lists), (picked, lists))
