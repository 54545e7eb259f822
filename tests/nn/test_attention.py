"""Attention against the formula it reorders, which projects every neighbor."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.kernels import NUM_EVENTS, check_close, made_block
from tgflow import _core
from tgflow.nn import AttentionLayer, TemporalAttention, TimeEncoding, attention


def plain_attention(layer, target, below, block):
    """The paper's formula: one query a target, one key and one value a neighbor, no shortcuts."""
    out = []
    for n in range(len(block.target)):
        at_zero = layer.time(torch.zeros(1, dtype=block.dt.dtype))[0]
        q = layer.query_time(at_zero)
        if target is not None:
            q = q + layer.query(target[n])
        keys, values = [], []
        for j in block.mask[n].nonzero().flatten().tolist():
            parts = [] if below is None else [below[block.neighbor[n, j]]]
            parts += [] if block.edge_x is None else [block.edge_x[n, j]]
            x = torch.cat([*parts, layer.time(block.dt[n, j : j + 1])[0]])
            keys.append(layer.key(x) + 0.7)  # any bias will do: it cancels
            values.append(layer.value(x))
        if not keys:
            out.append(torch.zeros_like(q))
            continue
        q_h = q.view(layer.heads, -1)
        k_h, v_h = (torch.stack(y).view(len(y), layer.heads, -1) for y in (keys, values))
        a = torch.softmax(torch.einsum("hd,jhd->hj", q_h, k_h) / math.sqrt(q_h.shape[1]), dim=1)
        out.append(torch.einsum("hj,jhd->hd", a, v_h).flatten())
    return torch.stack(out)


def made_layer(h_dim, x_dim, heads):
    torch.manual_seed(1)
    layer = TemporalAttention(
        TimeEncoding(3), h_dim=h_dim, edge_x_dim=x_dim, dim=4, heads=heads, dropout=0.0
    ).double()
    torch.nn.init.normal_(layer.value.bias)
    return layer


@settings(max_examples=tries(40), deadline=None)
@given(
    size=st.integers(2, 6),
    k=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    h_dim=st.sampled_from([0, 3]),
    x_dim=st.sampled_from([0, 2]),
    seed=st.integers(0, 99),
)
def test_attention_matches_the_plain_formula(size, k, heads, h_dim, x_dim, seed):
    block = made_block(size, k, 7, x_dim, seed=seed)
    layer = made_layer(h_dim, x_dim, heads)
    below = torch.randn(7, h_dim, dtype=torch.float64, requires_grad=True) if h_dim else None
    target = below[block.target] if below is not None else None
    sources = [*layer.parameters(), *([below] if below is not None else [])]
    fast = layer(target, below, block)
    target = below[block.target] if below is not None else None
    plain = plain_attention(layer, target, below, block)
    plain = plain + 0 * sum(p.sum() for p in layer.parameters())  # also without any neighbors
    torch.testing.assert_close(fast, plain)
    weights = torch.randn(fast.shape, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((fast * weights).sum(), sources, materialize_grads=True),
        torch.autograd.grad((plain * weights).sum(), sources, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-6)


@settings(max_examples=tries(60), deadline=None)
@given(
    size=st.integers(14, 40),
    k=st.integers(1, 5),
    heads=st.sampled_from([1, 2, 5]),
    h_dim=st.sampled_from([0, 3, 33]),
    x_dim=st.sampled_from([0, 2, 17]),
    num_below=st.sampled_from([1, 9, 50]),
    is_recent=st.booleans(),
    seed=st.integers(0, 99),
)
def test_many_targets_match_the_formula_of_each(
    size, k, heads, h_dim, x_dim, num_below, is_recent, seed
):
    block = made_block(size, k, num_below, x_dim, seed=seed, dtype=torch.float32)
    if is_recent:  # few distinct targets and lists of neighbors, each at many times
        which = torch.arange(size) % 3
        same = ("target", "neighbor", "mask", "eid", "edge_row")
        block = replace(block, **{name: getattr(block, name)[which] for name in same})
        block = replace(block, dt=torch.rand(size, k) * 50)
    torch.manual_seed(seed)
    layer = AttentionLayer(
        TimeEncoding(5), h_dim=h_dim, edge_x_dim=x_dim, dim=10, heads=heads, dropout=0.2
    )
    torch.nn.init.normal_(layer.attention.value.bias)
    below = torch.randn(num_below, h_dim) if h_dim else None
    each = layer.eval()(below, block)
    for parts in (attention._AT_ONCE, 7):
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(attention, "_AT_ONCE", parts)
            patch.setattr(layer.attention, "forward", None)  # the other way
            nodes = attention._used_rows(below, block.neighbor)
            edges = attention._used_rows(block.edge_table, block.edge_row)
            many = layer._embed_many(below, block, nodes, edges)
        check_close([many], [each.detach()])
    double = copy.deepcopy(layer).double()
    wide = replace(block, dt=block.dt.double())
    if block.edge_table is not None:
        wide = replace(wide, edge_table=block.edge_table.double())
    h = None if below is None else below.double()
    target = None if h is None else h[block.target]
    gathered = plain_attention(double.attention, target, h, wide)
    check_close([many], [double.merge(gathered, target).detach().float()])


def test_neighbors_are_projected_where_they_are_fewer_than_targets():
    layer = AttentionLayer(TimeEncoding(5), h_dim=3, edge_x_dim=3, dim=4, heads=2, dropout=0.1)
    below, ways = torch.randn(9, 3), []
    for size in (9 + NUM_EVENTS - 1, 9 + NUM_EVENTS):
        block = made_block(size, 40, 9, 3, seed=0, dtype=torch.float32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                layer, "_embed_many", lambda _, block, *used: ways.append(len(block.mask))
            )
            layer.eval()(below, block)
            with torch.no_grad():
                layer(below, block)
                with attention.each_target_alone():
                    layer(below, block)
                layer.train()(below, block)
    assert ways == [9 + NUM_EVENTS]


def test_native_attention_does_not_depend_on_the_number_of_threads():
    block = made_block(500, 4, 50, 3, seed=0, dtype=torch.float32)
    layer = AttentionLayer(TimeEncoding(5), h_dim=3, edge_x_dim=3, dim=4, heads=2, dropout=0.0)
    below, results = torch.randn(50, 3, requires_grad=True), []
    for num_threads in (1, 2, 5):
        _core.set_num_threads(num_threads)
        out = layer(below, block)
        grads = torch.autograd.grad(out.square().sum(), [below, *layer.parameters()])
        with torch.no_grad():
            results.append([out, *grads, layer.eval()(below, block)])
    _core.set_num_threads(2)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


@pytest.mark.parametrize(("h_dim", "x_dim"), [(3, 0), (3, 1), (3, 4), (0, 2), (2, 2), (4, 2)])
def test_inputs_of_wrong_widths_are_refused(h_dim, x_dim):
    layer = AttentionLayer(
        TimeEncoding(3), h_dim=h_dim, edge_x_dim=x_dim, dim=4, heads=2, dropout=0.0
    )
    with pytest.raises(ValueError, match=rf"of width ({x_dim}|{h_dim}).* (2|got some of 3)"):
        layer(torch.randn(6, 3), made_block(4, 2, 6, 2, seed=0))
