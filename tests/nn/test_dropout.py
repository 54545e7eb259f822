"""Dropout by key: what is drawn, and that everything agrees on it."""

import pytest
import torch

from helpers.effort import cases
from helpers.emulator import Emulator
from tgflow import _core
from tgflow.cuda.dropout import keep_factors
from tgflow.nn import Dropout, DropoutKeys

KEY = torch.tensor([0x1234_5678_9ABC_DEF0])


def drawn_by_core(key: torch.Tensor, rate: float, *shape: int) -> torch.Tensor:
    out = torch.full(shape, -1.0)
    _core.keep_factors(key=key, rate=rate, out=out)
    return out


def philox(key: int, item: int, draw: int) -> list[int]:
    """The four words of Philox4x32-10, as the paper writes it."""
    mask = (1 << 32) - 1
    c = [draw & mask, draw >> 32, item & mask, item >> 32]
    k0, k1 = key & mask, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & mask, (a >> 32) ^ c[3] ^ k1, a & mask]
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return c


def test_an_element_is_drawn_by_its_row_and_its_place():
    factors = drawn_by_core(KEY, 0.25, 3, 11)
    for row in range(3):
        words = [philox(int(KEY), i // 4, row)[i % 4] for i in range(11)]
        kept = [float(word >= 0.25 * 2**32) / 0.75 for word in words]
        torch.testing.assert_close(factors[row], torch.tensor(kept), atol=0, rtol=1e-7)


@pytest.mark.parametrize("order", cases([0, 1, 7], [0, 7]))
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (2, 30), (3, 2_051)])
def test_the_kernel_draws_what_the_core_draws(shape, order):
    for rate in (0.0, 0.1, 0.75):
        out = torch.full(shape, -1.0)
        keep_factors(Emulator(order=order), key=KEY, rate=rate, out=out)
        assert torch.equal(out, drawn_by_core(KEY, rate, *shape))


def made_model() -> torch.nn.Module:
    return torch.nn.Sequential(Dropout(0.5), torch.nn.Identity(), Dropout(0.5))


def test_keyed_passes_are_a_function_of_key_and_place():
    model, x = made_model(), torch.ones(4, 300)
    keys = DropoutKeys(model)

    def drawn(key: int) -> list[torch.Tensor]:
        with keys.keyed(key):
            return [model[0](x), model[2](x)]

    first, second = drawn(7)
    assert not torch.equal(first, second)  # each module has draws of its own
    torch.rand(5)
    again = DropoutKeys(other := made_model())
    with again.keyed(7):
        assert torch.equal(other[0](x), first)
        assert torch.equal(other[2](x), second)
    assert not torch.equal(drawn(8)[0], first)
    assert torch.equal(drawn(7)[0], first)


def test_a_captured_pass_draws_by_what_is_set_at_its_replay(monkeypatch):
    model, x = made_model(), torch.ones(300)
    keys = DropoutKeys(model)
    with keys.keyed(3):
        expected = model(x)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    keys.set(3)
    with keys.keyed(9):
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize(("rate", "training"), [(0.4, True), (0.4, False), (0.0, True)])
def test_dropout_of_gelu_has_the_values_and_gradients_of_both(rate, training):
    torch.manual_seed(0)
    dropout, x = Dropout(rate).train(training), torch.randn(5, 7, 30)
    grad = torch.randn(5, 7, 1).expand(5, 7, 30)
    found = []
    for made in (dropout.of_gelu, lambda y: dropout(torch.nn.functional.gelu(y))):
        leaf = x.clone().requires_grad_()
        with DropoutKeys(dropout).keyed(7):
            out = made(leaf * 1.0)
        out.backward(grad)
        found.append((out.detach(), leaf.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
