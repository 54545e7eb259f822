"""Layers, DGL blocks and PyG data give the same message passing results."""

import sys

import pytest
import torch

from tgflow import NO_NODE, EventBatch, TemporalGraph, sample_hops
from tgflow.graph.sampling import to_blocks, to_dgl, to_pyg
from tgflow.graph.sampling.blocks import import_dgl

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of DGL's sources
DIM = 6


@pytest.fixture
def dgl():
    try:
        return import_dgl()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture
def pyg():
    reason = "PyTorch Geometric is not installed"
    return pytest.importorskip("torch_geometric", reason=reason, exc_type=ImportError)


@pytest.fixture(params=[False, True], ids=["every", "distinct"])
def hops(request):
    """Two hops from queries with repeats, padding, and a node without history."""
    generator = torch.Generator().manual_seed(4)
    src, dst = torch.randint(0, 12, (2, 80), generator=generator)
    graph = TemporalGraph.from_events(EventBatch(src, dst, torch.arange(80) // 2))
    nodes = torch.tensor([3, 5, NO_NODE, 3, 7, 400, 3])
    t = torch.tensor([40, 30, 12, 40, 3, 40, 20])
    return sample_hops(graph, nodes, t, (4, 3), dedup=request.param)


def features(nodes):
    """A row per node; zeros for padding."""
    table = torch.randn(500, DIM, generator=torch.Generator().manual_seed(1))
    table[400:] = 0
    return table[nodes]


def sums(hops):
    """Two blocks of h' = h + the sum of the neighbors' h, on the fixed shapes. [Q, DIM]."""
    h = features(hops.inputs.nodes)
    for block in reversed(hops.blocks):
        neighbors = h[block.neighbor] * block.mask.unsqueeze(-1)
        h = h[block.target] + neighbors.sum(1)
    return h[hops.roots]


def test_layers_match_the_hops_without_padding(hops):
    blocks = to_blocks(hops)
    h = features(blocks[0].nodes)
    for block in blocks:
        messages = torch.zeros(block.num_targets, DIM).index_add(0, block.target, h[block.source])
        h = h[: block.num_targets] + messages
    torch.testing.assert_close(h[hops.roots], sums(hops))
    for block in blocks:
        assert (block.dt > 0).all()
        assert (block.dt == block.t[block.target] - block.edge_t).all()
        assert (block.t[block.source] == block.edge_t).all()
        assert (block.nodes == NO_NODE).sum() == 1  # the query


def test_dgl_passes_messages(hops, dgl):
    from dgl import function as fn

    blocks = to_dgl(hops)
    h = features(blocks[0].srcdata[dgl.NID])
    for block in blocks:
        with block.local_scope():
            block.srcdata["h"] = h
            block.update_all(fn.copy_u("h", "m"), fn.sum("m", "sum"))
            h = h[: block.num_dst_nodes()] + block.dstdata["sum"]
    torch.testing.assert_close(h[hops.roots], sums(hops))


def test_missing_dgl_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ImportError, match="dgl is not installed: pip install "):
        import_dgl()


def test_pyg_convolves(hops, pyg):
    from torch_geometric.nn import SimpleConv

    blocks = to_pyg(hops)
    h = features(blocks[0].n_id)
    add = SimpleConv(aggr="sum")
    for data in blocks:
        assert data.validate()
        h = h[: data.num_targets] + add((h, h[: data.num_targets]), data.edge_index)
    torch.testing.assert_close(h[hops.roots], sums(hops))
