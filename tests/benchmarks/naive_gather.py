"""The gather that the aligned one is measured against: a warp a row, from where the row begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tgflow.cuda.device import CudaDevice
from tgflow.cuda.requirements import require_cupy

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

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
_THREADS = 256


class ExternalStream:
    """A stream of torch's, as CuPy takes others' streams."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def naive_gather(gpu: Device) -> Callable[[Tensor, Tensor, Tensor], None] | None:
    """Return the kernel as a function of rows, ids and out; None without a GPU to run it."""
    if not isinstance(gpu, CudaDevice):
        return None
    cupy = require_cupy(gpu.device)
    with torch.cuda.device(gpu.device):
        kernel = cupy.RawKernel(SOURCE, "naive_gather")
    blocks = 8 * gpu.multiprocessors

    def launch(rows: Tensor, ids: Tensor, out: Tensor) -> None:
        stream = cupy.cuda.Stream.from_external(ExternalStream(gpu.current_stream()))
        sizes = np.int64(rows.shape[1]), np.int64(len(ids))
        places = [np.uint64(x.data_ptr()) for x in (rows, ids, out)]
        arguments = (places[0], sizes[0], places[1], sizes[1], places[2])
        with torch.cuda.device(gpu.device), stream:
            kernel((blocks,), (_THREADS,), arguments)

    return launch
