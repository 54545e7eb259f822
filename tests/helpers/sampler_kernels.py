"""Sampler kernels launched on a block store, returning results like the samplers."""

from __future__ import annotations

import ctypes

import torch

from tgflow import _core
from tgflow.cuda import structs
from tgflow.cuda.structs import NeighborRows, QueryArgs
from tgflow.graph.sampling import Neighbors

EVERYTHING = 2**63 - 1


def sample(kernels, store, nodes, t, k, before=None, key=None, shape=(3, 64)) -> Neighbors:
    """Sample `recent` without a key, else `uniform`. Slots are poisoned first."""
    queries, rows, out = prepared(nodes, t, k, before)
    where = ctypes.c_uint64(store.snapshot.data_ptr()), ctypes.c_uint64(0)
    if key is None:
        kernels.launch("sample_recent", *shape, *where, queries, rows)
    else:
        spec = structs.SamplerArgs(_core.Strategy.uniform.value, key, 1, 0)
        kernels.launch("sample_uniform", *shape, *where, queries, spec, rows)
    return out


def prepared(nodes, t, k, before=None) -> tuple[QueryArgs, NeighborRows, Neighbors]:
    size = len(nodes)
    out = Neighbors(*torch.full((3, size, k), -99), torch.full((size,), -99, dtype=torch.int32))
    queries = QueryArgs(nodes.data_ptr(), t.data_ptr(), 0, EVERYTHING, size)
    if isinstance(before, torch.Tensor):
        queries.before = before.data_ptr()
    elif before is not None:
        queries.before_all = before
    columns = (out.nodes, out.t, out.eid, out.count)
    return queries, NeighborRows(*(column.data_ptr() for column in columns), k), out


def assert_equal(got: Neighbors, expected: Neighbors) -> None:
    for name in ("nodes", "t", "eid", "count"):
        one, other = getattr(got, name), getattr(expected, name)
        if one.dtype != other.dtype or not torch.equal(one, other):  # ten times faster
            torch.testing.assert_close(one, other, rtol=0, atol=0)
