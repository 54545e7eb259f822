"""Launches the samplers: a kernel of its own where lanes share a query, else a thread a query."""

from __future__ import annotations

import ctypes

from tgflow import _core
from tgflow.cuda.launch import Kernels
from tgflow.cuda.structs import NeighborRows, Queries, SamplerArgs

_RECENT, _DECAYED = _core.Strategy.recent.value, _core.Strategy.decayed.value


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
    if sampler.types or sampler.strategy == _DECAYED:
        blocks = _blocks(queries.size, 128)
        kernels.launch("sample_any", blocks, 128, address, queries, sampler, out)
    elif sampler.strategy == _RECENT:
        blocks = _blocks(queries.size, 256 // 8)
        kernels.launch("sample_recent", blocks, 256, address, queries, out)
    else:
        blocks = _blocks(queries.size, 256 // 16)
        kernels.launch("sample_uniform", blocks, 256, address, queries, sampler, out)


def _blocks(num_queries: int, per_block: int) -> int:
    """Return how many thread blocks; each goes on with further queries where they are too many."""
    return min(-(-num_queries // per_block), 2**31 - 1)
