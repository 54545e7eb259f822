"""Kernels of samplers and layers, called with made arguments."""

import ctypes
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tgflow import _core
from tgflow.cuda import structs
from tgflow.cuda.structs import NeighborRows, QueryArgs
from tgflow.graph.batch import Block
from tgflow.graph.sampling import Neighbors
from tgflow.nn import TimeEncoding
from tgflow.nn._native import gru_step, has_bfloat16

EVERYTHING = 2**63 - 1


def sample(kernels, store, nodes, t, k, before=None, key=None, shape=(3, 64)):
    """Sample `recent` without a key, else `uniform`. Slots are poisoned first."""
    queries, rows, out = prepared(nodes, t, k, before)
    where = ctypes.c_uint64(store.snapshot.data_ptr()), ctypes.c_uint64(0)
    if key is None:
        kernels.launch("sample_recent", *shape, *where, queries, rows)
    else:
        spec = structs.SamplerArgs(_core.Strategy.uniform.value, key, 1, 0)
        kernels.launch("sample_uniform", *shape, *where, queries, spec, rows)
    return out


def staging(events):
    """Return what `DeviceStore.reserve` calls for events that no log has to have."""

    def stage(rows):
        torch.stack([events.src, events.dst, events.t], out=rows)
        return int(events.src.max()), int(events.dst.max())

    return stage


def prepared(nodes, t, k, before=None):
    size = len(nodes)
    out = Neighbors(*torch.full((3, size, k), -99), torch.full((size,), -99, dtype=torch.int32))
    queries = QueryArgs(nodes.data_ptr(), t.data_ptr(), 0, EVERYTHING, size)
    if isinstance(before, torch.Tensor):
        queries.before = before.data_ptr()
    elif before is not None:
        queries.before_all = before
    columns = (out.nodes, out.t, out.eid, out.count)
    return queries, NeighborRows(*(column.data_ptr() for column in columns), k), out


def assert_equal(got, expected):
    for name in ("nodes", "t", "eid", "count"):
        one, other = getattr(got, name), getattr(expected, name)
        if one.dtype != other.dtype or not torch.equal(one, other):  # ten times faster
            torch.testing.assert_close(one, other, rtol=0, atol=0)


needs_bfloat16 = pytest.mark.skipif(not has_bfloat16(), reason="needs AVX512_BF16")
NUM_EVENTS = 5
WIDTHS = [(8, 12, 4), (100, 172, 100), (5, 3, 7), (130, 0, 33), (0, 1, 3), (0, 4, 36)]
"""Widths of node inputs, edge features and time encodings."""


def made_block(size, k, below, x_dim, *, seed, dtype=torch.float64):
    """A block with gaps anywhere, and with a first target that has no neighbors."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(size, k, generator=generator) < 0.7
    mask[:1] = False
    table = torch.randn(NUM_EVENTS, x_dim, generator=generator, dtype=dtype)
    table[0] = 0
    edge_row = torch.randint(1, NUM_EVENTS, (size, k), generator=generator) * mask
    return Block(
        target=torch.randint(below, (size,), generator=generator),
        neighbor=torch.randint(below, (size, k), generator=generator) * mask,
        mask=mask,
        dt=torch.rand(size, k, generator=generator).to(dtype) * 50 * mask,
        eid=torch.where(mask, edge_row, -1),
        edge_row=edge_row,
        edge_table=table if x_dim else None,
    )


@dataclass
class AttentionCase:
    """Arguments of `tgflow.nn.attention.attend`, and loss weights of its results."""

    query: Tensor
    below: Tensor | None
    block: Block
    time: TimeEncoding
    keep: Tensor | None

    @classmethod
    def made(
        cls,
        size,
        k,
        widths,
        *,
        heads=2,
        below=9,
        shared=False,
        dropped=True,
        seed=0,
        dtype=torch.float32,
    ):
        """Return a case with inputs of widths h_dim, x_dim and time_dim."""
        generator = torch.Generator().manual_seed(seed)
        h_dim, x_dim, time_dim = widths

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=dtype)

        query = normal(heads, 1 if shared else size, sum(widths)) / max(sum(widths), 1) ** 0.5
        keep = (torch.rand(heads, size, k, generator=generator) < 0.8).to(dtype) / 0.8
        return cls(
            query.requires_grad_(),
            normal(below, h_dim).requires_grad_() if h_dim else None,
            made_block(size, k, below, x_dim, seed=seed, dtype=dtype),
            TimeEncoding(time_dim).to(dtype),
            keep if dropped else None,
        )

    def with_block(self, **columns):
        """Return a copy with other columns of its block."""
        return replace(self, block=replace(self.block, **columns))

    def to(self, device):
        """Return a copy on a device, with new leaf tensors."""

        def moved(tensor):
            if tensor is None:
                return None
            return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

        names = ("target", "neighbor", "mask", "dt", "eid", "edge_row", "edge_table")
        columns = {name: moved(getattr(self.block, name)) for name in names}
        time = TimeEncoding(self.time.dim).to(device)
        query = moved(self.query)
        assert query is not None
        return AttentionCase(query, moved(self.below), Block(**columns), time, moved(self.keep))

    def results(self, op):
        """Return the outputs of `op`, and the gradients of a loss over all of them."""
        out = op(self.query, self.below, self.block, self.time, self.keep)
        weights = torch.Generator().manual_seed(1)
        loss = torch.zeros((), device=self.query.device, dtype=self.query.dtype)
        for part in out:
            drawn = torch.randn(part.shape, generator=weights).to(part)
            scale = max(part.shape[-1], 1) ** -0.5  # else the gradients of weights nearly cancel
            loss = loss + ((part * drawn).sum() + part.square().sum()) * scale
        sources = [self.query, *([] if self.below is None else [self.below])]
        return [part.detach() for part in (*out, *torch.autograd.grad(loss, sources))]


def gru_results(dim, seed, device="cpu", *, flagged=False):
    """Return a GRU step of 37 rows with memory in wider rows, and its gradients.

    `flagged`: Whether every third row keeps its memory.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return (torch.randn(shape, generator=generator) * 3).to(device)

    gates, own = normal(37, 3 * dim).requires_grad_(), normal(37, dim).requires_grad_()
    memory = normal(37, dim + 8)[:, :dim]
    clock = torch.arange(4 * 37, device=device).view(37, 4) % 3
    out = gru_step(gates.clone(), own, memory, clock[:, 2:3] if flagged else None)
    return [out.detach(), *torch.autograd.grad((out * normal(37, dim)).sum(), (gates, own))]


def check_close(found, expected, terms=400):
    """Assert equality within 2e-5 of each maximum, or of 1: summation orders differ.

    Roundings of sums of more than 400 `terms` of any signs add up in proportion to the square root.
    """
    share = 2e-5 * max(terms / 400, 1.0) ** 0.5
    for one, other in zip(found, expected, strict=True):
        largest = other.abs().max().item() if other.numel() else 0.0
        tolerance = share * max(largest, 1.0)
        torch.testing.assert_close(one.to(other.device), other, atol=tolerance, rtol=0)
