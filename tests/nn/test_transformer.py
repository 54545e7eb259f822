"""A transformer's layer by its equations, however it is computed."""

import math

import pytest
import torch
from torch.nn import functional as F

from tgflow.nn.dropout import DropoutKeys
from tgflow.nn.layers import TransformerLayer


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


@pytest.mark.parametrize("training", [False, True])
def test_a_layer_is_its_equations(training):
    torch.manual_seed(0)
    layer, x = TransformerLayer(6, 2, 0.3).train(training), torch.randn(4, 5, 6)
    normed = layer.attention_norm(x)
    tokens = layer.query_key_value(normed).view(4, 5, 3, 2, 3).detach().double()
    with DropoutKeys(layer).keyed(3):
        keep = layer.weight_dropout.of_shape(4, 2, 5, 5)
        middle = x + layer.merge_dropout(layer.merge(attended(tokens, keep).float().view(4, 5, 6)))
        hidden = layer.map.hidden_dropout(F.gelu(layer.map.hidden(layer.map_norm(middle))))
        expected = middle + layer.map.out_dropout(layer.map.out(hidden))
        found = layer(x)
        with torch.no_grad():
            without_gradients = layer(x)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(without_gradients, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_means_of_parts_of_the_next_tokens(parts):
    torch.manual_seed(0)
    layer, x = TransformerLayer(6, 2, 0.3).eval(), torch.randn(3, 8, 6)
    expected = layer(x).view(3, parts, 8 // parts, 6).mean(dim=2)
    torch.testing.assert_close(layer.means(x, parts), expected, atol=1e-6, rtol=1e-5)
