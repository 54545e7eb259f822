"""What the core computes is right at each level of instructions, and alike where products fuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.neural import WIDTHS, AttentionCase, check_close, gru_results
from tgflow import _core
from tgflow.nn import Dropout, DropoutKeys, Mixer
from tgflow.nn._native import cosines, gelu_dropout, keep_factors, self_attend, walk_features
from tgflow.nn.attend import attend, attend_plain
from tgflow.nn.walks import gram_plain

LEVELS = _core.simd_levels()
FUSED = [level for level in LEVELS if level != "baseline"]
KEY = torch.tensor([0x1234_5678_9ABC_DEF0])


@pytest.fixture(autouse=True)
def level_as_it_was() -> Iterator[None]:
    before = _core.simd_level()
    yield
    _core.set_simd_level(before)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention(op: Callable = attend) -> list[Tensor]:
    """At widths that fill vectors and that do not, for queries of one's own and shared ones."""
    cases = [
        AttentionCase.made(40, 10, widths, shared=shared)
        for widths in [*WIDTHS, (71, 111, 47)]
        for shared in (False, True)
    ]
    return [x for case in cases for x in case.results(op)]


def gru() -> list[Tensor]:
    return [x for dim in (3, 47, 100) for x in gru_results(dim, 0)]


def plain_gru() -> list[Tensor]:
    def step(gates: Tensor, own: Tensor, memory: Tensor) -> Tensor:
        reset, keep, new = gates.chunk(3, dim=1)
        new = torch.tanh(new + torch.sigmoid(reset) * own)
        return torch.lerp(new, memory, torch.sigmoid(keep))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helpers.neural.GruStep.apply", step)
        return gru()


def self_attention(op: Callable = lambda tokens: self_attend(tokens, None)) -> list[Tensor]:
    found = []
    for length, width in ((5, 3), (19, 50), (33, 16)):
        tokens = normal(3, length, 3, 2, width).requires_grad_()
        out = op(tokens)
        found += [out.detach(), *torch.autograd.grad((out * normal(*out.shape)).sum(), tokens)]
    return found


def plain_self_attention() -> list[Tensor]:
    def op(tokens: Tensor) -> Tensor:
        query, key, value = tokens.permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)

    return self_attention(op)


def mixing() -> list[Tensor]:
    torch.manual_seed(0)
    found = []
    for tokens, dim in ((5, 4), (20, 100), (10, 23)):
        mixer, x = Mixer(tokens, dim, 0.4), normal(7, tokens, dim).requires_grad_()
        nn.init.normal_(mixer.token_norm.weight)
        with DropoutKeys(mixer).keyed(5):
            out = mixer(x)
        sources = [x, *mixer.parameters()]
        found += [out.detach(), *torch.autograd.grad((out * normal(*out.shape)).sum(), sources)]
    return found


def plain_mixing() -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tgflow.nn.mixer.is_fused", lambda x: False)
        return mixing()


def walks() -> list[Tensor]:
    base, state = normal(9, 39), normal(9, 2, 39)
    a, b = torch.arange(9), torch.arange(9).flip(0)
    return [walk_features(base, state, a, b, torch.full((9,), 0.9), torch.full((9,), 0.5))]


def plain_walks() -> list[Tensor]:
    all_walks = torch.cat([normal(9, 39).unsqueeze(1), normal(9, 2, 39)], dim=1)
    a, b = torch.arange(9), torch.arange(9).flip(0)
    gram = gram_plain(all_walks, a, b, torch.full((9,), 0.9), torch.full((9,), 0.5))
    return [gram.relu().log1p()]


def gelu() -> list[Tensor]:
    x = normal(1001).requires_grad_()
    out = gelu_dropout(x * 1, KEY, 0.3)
    return [out.detach(), *torch.autograd.grad(out.sum(), x)]


def plain_gelu() -> list[Tensor]:
    x, dropout = normal(1001).requires_grad_(), Dropout(0.3)
    dropout.key.copy_(KEY)
    dropout.is_keyed = True
    out = dropout.of_shape(1001) * F.gelu(x)
    return [out.detach(), *torch.autograd.grad(out.sum(), x)]


def time_encoding(op: Callable = cosines) -> list[Tensor]:
    return [op(normal(70).abs() * 1e6, normal(dim)) for dim in (3, 47, 100)]


def plain_time_encoding() -> list[Tensor]:
    return time_encoding(lambda dt, w: (dt.unsqueeze(-1) * w).double().cos().float())


WORK = {
    "attention": (attention, lambda: attention(attend_plain)),
    "gru": (gru, plain_gru),
    "self-attention": (self_attention, plain_self_attention),
    "token mixing": (mixing, plain_mixing),
    "walk features": (walks, plain_walks),
    "gelu": (gelu, plain_gelu),
    "cosines": (time_encoding, plain_time_encoding),
}
"""What the core does by vectors, and the same in torch."""


@pytest.mark.parametrize("what", WORK)
def test_each_level_computes_what_torch_does(what):
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


def test_dropout_draws_the_same_at_each_level():
    found = []
    for level in LEVELS:
        _core.set_simd_level(level)
        found.append(keep_factors(KEY, 0.3, (2, 333)))
    assert all(torch.equal(found[0], each) for each in found)


def test_a_level_that_the_machine_has_not_is_refused():
    with pytest.raises(ValueError, match=r"this machine has the levels baseline.*, got AVX-9000"):
        _core.set_simd_level("AVX-9000")
    assert _core.simd_level() == LEVELS[-1]
