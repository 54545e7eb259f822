"""Launches the sampling kernels, with several lanes or one thread per query."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow import _core
from tgflow.base.choices import Strategy
from tgflow.base.units import INT64_MIN
from tgflow.cuda.arguments import Arguments
from tgflow.cuda.device import Device
from tgflow.cuda.structs import NeighborRows, QueryArgs, SampleParams, SamplerArgs

_BLOCKS_EACH = 8
"""Thread blocks per multiprocessor; each starts by reading the snapshot."""
_PARAMS_WORDS = ctypes.sizeof(SampleParams) // 8


class _Kernel(NamedTuple):
    name: str
    threads: int
    """Threads per thread block."""
    lanes: int
    """Threads that share a query."""
    takes_sampler: bool = True


_ANY = _Kernel("sample_any", 128, 1)
"""Kernel of every strategy, with support for relations."""
KERNELS: dict[Strategy, _Kernel] = {
    "recent": _Kernel("sample_recent", 256, 8, takes_sampler=False),
    "uniform": _Kernel("sample_uniform", 256, 16),
    "window": _Kernel("sample_uniform", 256, 16),
    "decayed": _ANY,
}
"""Kernel of each strategy, for events of every type."""
_NUMBERS = {name: getattr(_core.Strategy, name).value for name in KERNELS}
_BY_NUMBER = {_NUMBERS[name]: kernel for name, kernel in KERNELS.items()}


def sampler_args(strategy: Strategy, key: int, span: int, relations: Tensor | None) -> SamplerArgs:
    """Return the struct of a sampler; `relations` are bits on the device, None: all count."""
    bits = 0 if relations is None else relations.data_ptr()
    return SamplerArgs(_NUMBERS[strategy], key, span, bits)


def queries(
    nodes: Tensor,
    t: Tensor,
    before: Tensor | None,
    before_all: int,
    rows: Tensor | None = None,
    since: tuple[int, int] = (INT64_MIN, 0),
) -> QueryArgs:
    """Return the struct of queries, contiguous int64 `[Q]` on the device, with a horizon."""
    limits, row = (0 if column is None else column.data_ptr() for column in (before, rows))
    return QueryArgs(nodes.data_ptr(), t.data_ptr(), limits, before_all, len(nodes), row, *since)


def neighbor_rows(nodes: Tensor, t: Tensor, eid: Tensor, count: Tensor) -> NeighborRows:
    """Return the struct of the output: int64 `[Q, k]`, and int32 `[Q]`, on the device."""
    k = nodes.shape[1]
    return NeighborRows(nodes.data_ptr(), t.data_ptr(), eid.data_ptr(), count.data_ptr(), k)


def params_address(params: Tensor | None, device: torch.device) -> int:
    """Return the address of a struct `SampleParams`, or 0 to use a kernel's arguments.

    `params` are the cut-off for all queries, the key of draws (its 64 bits), the number of queries
    in use, and the horizon. Kernels read them at run time, so a captured call can be replayed with
    other values.
    """
    if params is None:
        return 0
    return Arguments(device).address("params", params, torch.int64, _PARAMS_WORDS)


def sample(
    gpu: Device,
    snapshot: int,
    sampler: SamplerArgs,
    queries: QueryArgs,
    out: NeighborRows,
    params: int = 0,
) -> None:
    """Sample the neighbors of `queries` from the store at `snapshot`; does not synchronize.

    The struct `Snapshot` (cuda/snapshot.hpp) at that address, and `params` from `params_address`,
    are read when the kernel runs.
    """
    if queries.size == 0:  # a launch of zero thread blocks is an error
        return
    kernel = _ANY if sampler.relations else _BY_NUMBER[sampler.strategy]
    blocks = -(-queries.size // (kernel.threads // kernel.lanes))
    blocks = min(blocks, gpu.multiprocessors * _BLOCKS_EACH)
    arguments = (sampler, out) if kernel.takes_sampler else (out,)
    where = ctypes.c_uint64(snapshot), ctypes.c_uint64(params)
    gpu.kernels.launch(kernel.name, blocks, kernel.threads, *where, queries, *arguments)
