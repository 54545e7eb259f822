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

extern "C" __global__ void __launch_bounds__(256) sum_rows_by_4(PickedRows picked, RowLists lists) {
  sum_lists<4>(lists, picked.width, PickedTerms<4>{picked}, picked.out);
}
extern "C" __global__ void __launch_bounds__(256) sum_rows_by_1(PickedRows picked, RowLists lists) {
  sum_lists<1>(lists, picked.width, PickedTerms<1>{picked}, picked.out);
}
