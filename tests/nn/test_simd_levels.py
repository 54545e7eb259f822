"""The core is correct at each SIMD level, and identical where products are fused."""

import pytest
import torch
from torch.nn import functional as F

from helpers.kernels import WIDTHS, AttentionCase, check_close, made_block
from tgflow import _core
from tgflow.nn import AttentionLayer, Dropout, TimeEncoding
from tgflow.nn._native import gelu_dropout
from tgflow.nn.attention import attend, attend_plain
from tgflow.nn.linear import product

LEVELS = _core.simd_levels()
FUSED = [level for level in LEVELS if level != "baseline"]
SIZES = 0, 1, 7, 12, 16, 17, 33, 100, 300
KEY = torch.tensor([0x1234_5678_9ABC_DEF0])


@pytest.fixture(autouse=True)
def level_as_it_was():
    before = _core.simd_level()
    yield
    _core.set_simd_level(before)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention(op=attend):
    """At widths that are and are not multiples of a vector, for own and shared queries."""
    cases = [
        AttentionCase.made(40, 10, widths, shared=shared)
        for widths in [*WIDTHS, (71, 111, 47)]
        for shared in (False, True)
    ]
    return [x for case in cases for x in case.results(op)]


def embeddings(*, each):
    """Of many targets of few neighbors, by projecting each target or each neighbor."""
    found = []
    for h_dim, x_dim, time_dim in [*WIDTHS, (71, 111, 47)]:
        torch.manual_seed(h_dim)
        layer = AttentionLayer(
            TimeEncoding(time_dim), h_dim=h_dim, edge_x_dim=x_dim, dim=22, heads=2, dropout=0.0
        )
        block = made_block(60, 10, 9, x_dim, seed=time_dim, dtype=torch.float32)
        with torch.set_grad_enabled(each):
            out = layer.eval()(normal(9, h_dim) if h_dim else None, block)
        found.append(out.detach())
    return found


def gelus(gelu):
    """At sizes that are and are not multiples of a vector, also far from 0."""
    found = []
    for size in (0, 1, 63, 64, 130, 1001):
        x = normal(size) * 3
        x[:4] = torch.tensor([0.0, -0.0, 60.0, -60.0])[:size]
        out = gelu(x.requires_grad_())
        found += [out.detach(), *torch.autograd.grad(out.sum(), x)]
    return found


def plain_gelu(x):
    dropout = Dropout(0.3)
    dropout.key.copy_(KEY)
    dropout.is_keyed = True
    return dropout.of_shape(len(x)) * F.gelu(x)


def products():
    """Of matrices that do and do not fill vectors, tiles and blocks of inner indices."""
    return [product(normal(m, k), normal(k, 40 - m % 9)) for m in SIZES for k in SIZES]


def plain_products():
    return [normal(m, k) @ normal(k, 40 - m % 9) for m in SIZES for k in SIZES]


WORK = {
    "products": (products, plain_products),
    "attention": (attention, lambda: attention(attend_plain)),
    "projected": (lambda: embeddings(each=False), lambda: embeddings(each=True)),
    "gelu": (lambda: gelus(lambda x: gelu_dropout(x * 1, KEY, 0.3)), lambda: gelus(plain_gelu)),
}
"""Vectorized functions of the core, and their torch equivalents."""


@pytest.mark.parametrize("what", WORK)
def test_each_simd_level_matches_torch(what):
    native, plain = WORK[what]
    expected, found = plain(), {}
    for level in LEVELS:
        _core.set_simd_level(level)
        assert _core.simd_level() == level
        found[level] = native()
        check_close(found[level], expected)
    for level in FUSED[1:]:
        assert all(
            torch.equal(one, other)
            for one, other in zip(found[FUSED[0]], found[level], strict=True)
        )


def test_unsupported_simd_level_is_refused():
    with pytest.raises(ValueError, match=r"this machine has the levels baseline.*, got AVX-9000"):
        _core.set_simd_level("AVX-9000")
    assert _core.simd_level() == LEVELS[-1]
