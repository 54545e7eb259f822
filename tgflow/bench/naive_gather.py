"""The gather that the aligned one is measured against: a warp a row, from where the row begins."""

from __future__ import annotations

SOURCE = """
extern "C" __global__ void naive_gather(
    const float* rows, long long dim, const long long* id, long long num_ids, float* out) {
  const long long warps = gridDim.x * (long long)blockDim.x / 32;
  const long long first = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  for (long long i = first; i < num_ids; i += warps) {
    for (long long j = threadIdx.x % 32; j < dim; j += 32) {
      out[i * dim + j] = __ldcs(rows + id[i] * dim + j);
    }
  }
}
"""
