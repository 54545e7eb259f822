"""Launches the samplers: a kernel of its own where lanes share a query, else a thread a query."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from torch import Tensor

from tgflow import _core
from tgflow.choices import Strategy
from tgflow.cuda.launch import Kernels
from tgflow.cuda.structs import NeighborRows, QueryArgs, SamplerArgs


class _Kernel(NamedTuple):
    name: str
    threads: int
    """Of a thread block."""
    lanes: int
    """Threads that share a query."""
    takes_sampler: bool = True


_ANY = _Kernel("sample_any", 128, 1)
"""Answers every strategy, and heeds event types."""
KERNELS: dict[Strategy, _Kernel] = {
    "recent": _Kernel("sample_recent", 256, 8, takes_sampler=False),
    "uniform": _Kernel("sample_uniform", 256, 16),
    "window": _Kernel("sample_uniform", 256, 16),
    "decayed": _ANY,
}
"""What answers each strategy, of events of every type."""
_NUMBERS = {name: getattr(_core.Strategy, name).value for name in KERNELS}
_BY_NUMBER = {_NUMBERS[name]: kernel for name, kernel in KERNELS.items()}


def sampler_args(strategy: Strategy, key: int, span: int, types: Tensor | None) -> SamplerArgs:
    """Return the struct of what is asked for; `types` are bits on the device, None: all count."""
    bits = 0 if types is None else types.data_ptr()
    return SamplerArgs(_NUMBERS[strategy], key, span, bits)


def queries(nodes: Tensor, t: Tensor, before: Tensor | None, before_all: int) -> QueryArgs:
    """Return the struct of queries, contiguous int64 `[Q]` on the device."""
    limits = 0 if before is None else before.data_ptr()
    return QueryArgs(nodes.data_ptr(), t.data_ptr(), limits, before_all, len(nodes))


def neighbor_rows(nodes: Tensor, t: Tensor, eid: Tensor, count: Tensor) -> NeighborRows:
    """Return the struct of room for answers: int64 `[Q, k]`, and int32 `[Q]`, on the device."""
    k = nodes.shape[1]
    return NeighborRows(nodes.data_ptr(), t.data_ptr(), eid.data_ptr(), count.data_ptr(), k)


def sample(
    kernels: Kernels, snapshot: int, sampler: SamplerArgs, queries: QueryArgs, out: NeighborRows
) -> None:
    """Answer `queries` from the store at `snapshot`; does not synchronize.

    Args:
        kernels: Of the device where all memory is.
        snapshot: Address of the struct `Snapshot` (cuda/snapshot.hpp), read when the kernel runs.
        sampler: What is asked for, checked.
        queries: May be none.
        out: Room for all answers; every slot is written.
    """
    if queries.size == 0:  # a launch of no thread blocks is an error
        return
    address = ctypes.c_uint64(snapshot)
    kernel = _ANY if sampler.types else _BY_NUMBER[sampler.strategy]
    blocks = _blocks(queries.size, kernel.threads // kernel.lanes)
    arguments = (sampler, out) if kernel.takes_sampler else (out,)
    kernels.launch(kernel.name, blocks, kernel.threads, address, queries, *arguments)


def _blocks(num_queries: int, per_block: int) -> int:
    """Return how many thread blocks; each goes on with further queries where they are too many."""
    return min(-(-num_queries // per_block), 2**31 - 1)
