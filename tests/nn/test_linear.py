"""Matrix products match torch; a row's bits depend on nothing but the row and the weights."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.kernels import needs_bfloat16
from tgflow import _core
from tgflow.nn.linear import Linear, product, product_precision

SHAPES = [(0, 5, 3), (4, 0, 3), (4, 5, 0), (1, 1, 1), (7, 13, 9), (13, 100, 100), (97, 31, 17),
          (200, 300, 40), (300, 513, 33)]  # fmt: skip
"""Rows, inner indices, columns: below, at and above tiles, panels and blocks."""
CPU = torch.device("cpu")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def check_sum(found, a, b, prior=0.0):
    """Each element is off by at most one rounding a term, of half a unit in the last place."""
    a, b = a.double(), b.double()
    terms = a.abs() @ b.abs() + (prior.double().abs() if isinstance(prior, Tensor) else 0)
    error = (found.double() - (prior + a @ b)).abs()
    assert (error <= (a.shape[-1] + 1) * 2.0**-24 * terms).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_product_matches_float64_for_any_strides(shape):
    m, k, n = shape
    row, full = normal(n), normal(m, n)
    for a in (normal(m, k), normal(k, m).t(), normal(m, 2 * k)[:, ::2], normal(1, k).expand(m, k)):
        for b in (normal(k, n), normal(n, k).t(), normal(k, 3 * n)[:, :n]):
            check_sum(product(a, b), a, b)
            check_sum(product(a, b, row), a, b, row)
            check_sum(product(a, b, full.clone()), a, b, full)
    heads = normal(m, 2, k).transpose(0, 1), normal(2, n, k).transpose(1, 2)
    check_sum(product(*heads), *heads)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_match_float64(shape):
    m, k, n = shape
    given = [normal(m, k), normal(n, k), normal(n), normal(m, 2), normal(n, 2)]
    x, weight, bias, other, again = given
    inputs = [value.double().requires_grad_() for value in given]
    x64, w64, bias64, other64, again64 = inputs
    expected = F.linear(x64, w64, bias64) + other64 @ again64.t()
    ours = [value.requires_grad_() for value in given]
    found = product(x, weight.t(), bias)
    found = product(other, again.t(), found)
    grad = normal(m, n, seed=1)
    pairs = zip(
        torch.autograd.grad(found, ours, grad),
        torch.autograd.grad(expected, inputs, grad.double()),
        strict=True,
    )
    for one, two in pairs:
        # at most 513 terms of some units each
        torch.testing.assert_close(one.double(), two, atol=2e-4, rtol=1e-5)
        assert one.is_contiguous()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bfloat16)])
def test_bits_depend_on_neither_rows_nor_threads(precision):
    x, weight, threads = normal(1000, 301), normal(301, 150), _core.num_threads()
    with product_precision(precision, CPU):
        _core.set_num_threads(1)
        whole, gradient = product(x, weight), product(x.t(), x)
        for begin, end in ((0, 1), (3, 16), (5, 600), (999, 1000)):
            assert torch.equal(product(x[begin:end], weight), whole[begin:end])
        assert torch.equal(product(x, weight[:, 40:57]), whole[:, 40:57])
        padded = torch.cat([x, torch.zeros(23, 301)])
        assert torch.equal(product(padded.t(), padded), gradient)
        for num in (2, 3, threads):
            _core.set_num_threads(num)
            assert torch.equal(product(x, weight), whole)
            assert torch.equal(product(x.t(), x), gradient)


@needs_bfloat16
@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat_product_is_that_of_rounded_factors(shape):
    m, k, n = shape
    a, b = normal(m, k), normal(n, k)
    for left, right in ((a, b.t()), (a.t().contiguous().t(), b.t().contiguous())):
        with product_precision("bf16", CPU):
            found = product(left, right)
        rounded = left.bfloat16().float(), right.bfloat16().float()
        check_sum(found, *rounded)
        assert k < 2 or n == 0 or m == 0 or not torch.equal(found, product(left, right))


@needs_bfloat16
def test_bfloat_product_keeps_what_is_not_finite():
    x = torch.tensor([[float("nan")], [float("inf")], [-float("inf")], [3.4e38]])
    x = torch.cat([x, torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)[:, None]])
    with product_precision("bf16", CPU):
        found = product(x, torch.ones(1, 1)).flatten()
    inf = float("inf")  # 3.4e38 is closer to 2^128 than to the largest bfloat16
    torch.testing.assert_close(
        found, torch.tensor([float("nan"), inf, -inf, inf, float("nan")]), equal_nan=True
    )


def test_linear_layer_matches_torch_in_float64_too():
    layer = Linear(6, 4).double()
    x = normal(2, 3, 6).double()
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    prior = normal(2, 4).double()
    torch.testing.assert_close(layer(x[0, :2], prior.clone()), prior + x[0, :2] @ layer.weight.t())
