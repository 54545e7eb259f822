"""Launches the samplers: a kernel of its own where lanes share a query, else a thread a query."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from tgflow import _core
from tgflow.choices import Strategy
from tgflow.cuda.launch import Kernels
from tgflow.cuda.structs import NeighborRows, Queries, SamplerArgs


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
_BY_NUMBER = {getattr(_core.Strategy, name).value: kernel for name, kernel in KERNELS.items()}


def sample(
    kernels: Kernels, snapshot: int, sampler: SamplerArgs, queries: Queries, out: NeighborRows
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
