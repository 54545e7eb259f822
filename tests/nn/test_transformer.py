"""A transformer's layer by its equations, however it is computed."""

import math

import pytest
import torch
from torch.nn import functional as F

from tgflow import _core
from tgflow.nn._native import self_attend
from tgflow.nn.dropout import DropoutKeys
from tgflow.nn.transformer import TransformerLayer


def attended(tokens, keep):
    """Head by head, in float64."""
    num, length, _, heads, width = tokens.shape
    out = tokens.new_zeros(num, length, heads, width)
    for n in range(num):
        for h in range(heads):
            query, key, value = tokens[n, :, :, h].unbind(1)
            weight = (query @ key.t() / math.sqrt(width)).softmax(dim=-1)
            out[n, :, h] = (weight if keep is None else weight * keep[n, h]) @ value
    return out


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("shape", [(3, 1, 2, 1), (2, 5, 1, 3), (3, 16, 2, 8), (2, 19, 3, 50)])
def test_every_token_attends_to_all_of_its_sequence(shape, drops):
    num, length, heads, width = shape
    tokens = torch.randn(num, length, 3, heads, width, dtype=torch.float64)
    keep = torch.rand(num, heads, length, length).mul(2) if drops else None
    grad, found = torch.randn(num, length, heads, width, dtype=torch.float64), []
    for dtype, attend in ((torch.float64, attended), (torch.float32, self_attend)):
        leaf = tokens.to(dtype).detach().clone().requires_grad_()
        out = attend(leaf, keep if keep is None else keep.to(dtype))
        out.backward(grad.to(dtype))
        found.append((out.detach().float(), leaf.grad.float()))
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, atol=2e-5, rtol=2e-5)


def test_scores_far_below_zero_have_weights():
    tokens = torch.full((1, 3, 3, 1, 4), 100.0)
    tokens[0, :, 0] = -100.0
    out = self_attend(tokens.requires_grad_(), None)
    torch.testing.assert_close(out.detach(), torch.full((1, 3, 1, 4), 100.0))


def test_no_sequence_at_all():
    assert self_attend(torch.zeros(0, 5, 3, 2, 4), None).shape == (0, 5, 2, 4)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_or_not_a_layer_is_the_same(training):
    torch.manual_seed(0)
    layer, x = TransformerLayer(6, 2, 0.3).train(training), torch.randn(4, 5, 6)
    with DropoutKeys(layer).keyed(3):
        with torch.no_grad():
            expected = layer(x)
        torch.testing.assert_close(layer(x).detach(), expected, atol=1e-6, rtol=1e-5)


def test_a_layer_is_its_equations():
    torch.manual_seed(0)
    layer, x = TransformerLayer(6, 2, 0.3).eval(), torch.randn(4, 5, 6)
    normed = layer.attention_norm(x)
    tokens = layer.query_key_value(normed).view(4, 5, 3, 2, 3).detach().double()
    middle = x + layer.merge(attended(tokens, None).float().view(4, 5, 6))
    hidden = F.gelu(layer.map.hidden(layer.map_norm(middle)))
    torch.testing.assert_close(layer(x), middle + layer.map.out(hidden), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_means_of_parts_of_the_next_tokens(parts):
    torch.manual_seed(0)
    layer, x = TransformerLayer(6, 2, 0.3).eval(), torch.randn(3, 8, 6)
    expected = layer(x).view(3, parts, 8 // parts, 6).mean(dim=2)
    torch.testing.assert_close(layer.means(x, parts), expected, atol=1e-6, rtol=1e-5)


def test_the_core_refuses_tokens_that_do_not_fit():
    tokens, out = torch.zeros(2, 4, 3, 1, 5), torch.zeros(2, 4, 1, 5)
    for changed, text in (
        ({"tokens": tokens[:, :, :2].contiguous()}, "tokens must be float32"),
        ({"keep": torch.zeros(2, 1, 4, 3)}, r"keep must be float32 \[2, 1, 4, 4\]"),
        ({"out": out[:1]}, r"out must be float32 \[2, 4, 1, 5\], got float32 \[1, 4, 1, 5\]"),
    ):
        arguments = {"tokens": tokens, "keep": None, "weight": None, "out": out, **changed}
        with pytest.raises(ValueError, match=text):
            _core.self_attend(**arguments)
