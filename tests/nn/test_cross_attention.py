import torch
from torch import nn

from tgflow.nn import CrossAttention


def test_cross_attention_is_torchs_and_a_feed_forward_with_norms():
    torch.manual_seed(0)
    layer = CrossAttention(6, 2, 0.5).eval()
    plain = nn.MultiheadAttention(6, 2, batch_first=True)
    maps = (layer.query, layer.key, layer.value)
    plain.in_proj_weight.data = torch.cat([each.weight for each in maps])
    plain.in_proj_bias.data = torch.cat([each.bias for each in maps])
    plain.out_proj.load_state_dict(layer.merge.state_dict())
    tokens, query = torch.randn(3, 5, 6), torch.randn(4, 6)
    mask = torch.rand(3, 5) < 0.6
    mask[:, 0] = True
    group = torch.tensor([2, 0, 0, 1])
    attended, _ = plain(
        query.unsqueeze(1), tokens[group], tokens[group], key_padding_mask=~mask[group]
    )
    x = layer.attention_norm(query + attended.squeeze(1))
    expected = layer.out_norm(x + layer.feed_forward(x))
    torch.testing.assert_close(layer(query, layer.keys(tokens), mask, group), expected)


def test_a_query_of_no_tokens_attends_to_nothing():
    torch.manual_seed(0)
    layer = CrossAttention(4, 2, 0.0)
    query = torch.randn(1, 4, requires_grad=True)
    tokens, mask = torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool)
    out = layer(query, layer.keys(tokens), mask, torch.tensor([0]))
    other = layer(query, layer.keys(tokens + 1), mask, torch.tensor([0]))
    assert torch.equal(out, other)
    out.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())
    assert bool(query.grad.isfinite().all())
