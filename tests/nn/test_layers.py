"""Layers by their equations."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from helpers.effort import tries
from helpers.neural import made_block
from tgflow.batch import Targets
from tgflow.metrics import average_precision
from tgflow.nn import (
    CrossAttention,
    LogTimeEncoding,
    MemoryRows,
    MemoryUpdater,
    Mixer,
    Pairs,
    TimeEncoding,
    aggregate,
)
from tgflow.nn.attention import attend
from tgflow.nn.choice import Choice, average_precisions
from tgflow.nn.co_occurrence import co_occurrence
from tgflow.nn.dropout import DropoutKeys
from tgflow.nn.label_decoder import LabelDecoder
from tgflow.nn.layers import TransformerLayer


def plain(mixer: Mixer, x: torch.Tensor) -> torch.Tensor:
    """One row, with no transposed views: the equation, token by token and channel by channel."""
    tokens, channels = mixer.token_map, mixer.channel_map

    def mapped(part: nn.Module, v: torch.Tensor) -> torch.Tensor:
        hidden = part.hidden.weight @ v + part.hidden.bias
        return part.out.weight @ nn.functional.gelu(hidden) + part.out.bias

    columns = [x[:, c] + mapped(tokens, mixer.token_norm(x[:, c])) for c in range(x.shape[1])]
    x = torch.stack(columns, dim=1)
    return torch.stack([row + mapped(channels, mixer.channel_norm(row)) for row in x])


def test_mixer_matches_the_equation():
    torch.manual_seed(0)
    mixer, x = Mixer(5, 4, 0.5).eval(), torch.randn(3, 5, 4)
    torch.testing.assert_close(mixer(x), torch.stack([plain(mixer, row) for row in x]))
    torch.testing.assert_close(mixer.mean(x), mixer(x).mean(dim=1))


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


@pytest.mark.parametrize("dt", [0.0, 1e-3, 1.0, 1e4, 2.6e6, 3e9])
def test_time_encoding_is_the_cosine_of_the_phase_that_float32_has(dt):
    encoding = TimeEncoding(100)
    dt = dt * torch.linspace(0.5, 1, 30)
    phase = (dt.unsqueeze(-1) * encoding.frequency).double()
    torch.testing.assert_close(encoding(dt), phase.cos().float(), rtol=0, atol=7e-7)
    block = replace(made_block(30, 1, 1, 0, seed=0, dtype=torch.float32), dt=dt.view(30, 1))
    block = replace(block, mask=torch.ones(30, 1, dtype=torch.bool))
    native = attend(torch.randn(1, 30, 100), None, block, encoding, None).inputs[0]
    torch.testing.assert_close(native, phase.cos().float(), rtol=0, atol=1e-6)


def test_log_time_encoding_by_hand():
    encoding = LogTimeEncoding(4)
    with torch.no_grad():
        encoding.phase[1] = 0.5
    out = encoding(torch.tensor([[0.0, math.e - 1]]))
    assert out.shape == (1, 2, 4)
    torch.testing.assert_close(out[0, :, 0], torch.tensor([1.0, math.cos(1)]))
    torch.testing.assert_close(out[0, :, 1], torch.tensor([math.cos(0.5), math.cos(0.501)]))


def made_rows(dtype: torch.dtype = torch.float64) -> MemoryRows:
    torch.manual_seed(0)
    clock = torch.tensor([[5, 9, 1, 3], [0, 0, 0, 0], [7, 7, 1, 3]])
    return MemoryRows(torch.randn(3, 6, dtype=dtype), clock, dim=2)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_updater_is_torchs_cell_on_the_whole_message(cell):
    rows = made_rows()
    updater = MemoryUpdater(2, 4, TimeEncoding(3), cell).double()
    torch_cell = (torch.nn.GRUCell if cell == "gru" else torch.nn.RNNCell)(9, 2).double()
    with torch.no_grad():
        torch_cell.weight_ih.copy_(
            torch.cat([updater.state_proj.weight, updater.time_proj.weight], 1)
        )
        torch_cell.bias_ih.copy_(updater.state_proj.bias)
        torch_cell.weight_hh.zero_()  # maps s_i once more than needed
        torch_cell.bias_hh.zero_()
        if cell == "gru":
            torch_cell.weight_hh[-2:] = updater.memory_proj.weight
            torch_cell.bias_hh[-2:] = updater.memory_proj.bias
    dt = (rows.mail_t - rows.last_update).double() * 0.5
    expected = torch_cell(torch.cat([rows.state, updater.time(dt)], 1), rows.memory)
    expected[1] = rows.memory[1]  # has no mail
    torch.testing.assert_close(updater(rows, 0.5), expected)


def counted(own, others, mask, pairs):
    """Do the same by counting words."""
    sequences = [
        [int(node), *(int(w) if is_there else None for w, is_there in zip(row, there, strict=True))]
        for node, row, there in zip(own, others, mask, strict=True)
    ]
    out = []
    for rows in zip(pairs.src_row.tolist(), pairs.dst_row.tolist(), strict=True):
        counters = [Counter(sequences[row]) for row in rows]
        out.append(
            [[[0 if w is None else c[w] for c in counters] for w in sequences[row]] for row in rows]
        )
    return torch.tensor(out, dtype=torch.int32).view(-1, 2, 1 + others.shape[1], 2)


@given(st.data())
def test_counts_match_a_counter(data):
    num, k = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 9))
    node = st.sampled_from([0, 1, 2, 3, 2**31 - 2, -(2**63), 2**63 - 1])
    draw = lambda what, *shape: torch.tensor(  # noqa: E731
        [data.draw(what) for _ in range(torch.Size(shape).numel())]
    ).view(shape)
    own, others = draw(node, num).long(), draw(node, num, k).long()
    mask = draw(st.booleans(), num, k).bool()
    num_pairs = data.draw(st.integers(0, 5))
    row = st.integers(0, num - 1)
    pairs = Pairs(draw(row, num_pairs).long(), draw(row, num_pairs).long())
    expected = counted(own, others, mask, pairs)
    nodes = torch.cat([own, others.flatten()])
    row = torch.arange(len(nodes))
    block = SimpleNamespace(target=row[:num], neighbor=row[num:].view(num, k), mask=mask)
    found = co_occurrence(SimpleNamespace(nodes=nodes, blocks=[block]), pairs)
    assert torch.equal(found, expected)


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


@settings(max_examples=tries(60), deadline=None)
@given(pairs=PAIRS, aggregator=st.sampled_from(["last", "mean"]))
def test_aggregate_matches_a_dict(pairs, aggregator):
    src = torch.tensor([a for a, _ in pairs], dtype=torch.int64)
    dst = torch.tensor([b for _, b in pairs], dtype=torch.int64)
    t = torch.arange(len(pairs)) // 2
    messages = torch.randn(2 * len(pairs), 3)
    received: dict[int, list[int]] = {}
    for i, pair in enumerate(pairs):
        for side, node in enumerate(pair):
            received.setdefault(node, []).append(2 * i + side)
    mail = aggregate(src, dst, t, messages, aggregator)
    assert mail.node.tolist() == sorted(received)
    for row, node, at, x in zip(mail.row, mail.node, mail.t, mail.x, strict=True):
        own = received[int(node)]
        assert int(row) == own[-1]
        assert int(at) == int(t[own[-1] // 2])
        expected = messages[own[-1]] if aggregator == "last" else messages[own].mean(0)
        torch.testing.assert_close(x, expected)


B, DIM, CLASSES, DEPTH = 5, 6, 4, 3


def batch_of(past=None, label=None, x=None):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(CLASSES, (B,), generator=generator) if label is None else label
    past = torch.full((B, 4, DEPTH), -1) if past is None else past
    targets = Targets(label, torch.ones(B, dtype=torch.bool), past, torch.zeros(B, 4))
    return SimpleNamespace(
        src_row=torch.arange(B), dst_row=torch.arange(B, 2 * B), x=x, targets=targets
    )


def decoder_of(**options):
    torch.manual_seed(0)
    decoder = LabelDecoder(DIM, CLASSES, depth=DEPTH, **options)
    torch.nn.init.normal_(decoder.out.weight)  # as if it had learned something
    return decoder


Z = torch.randn(2 * B, DIM, generator=torch.Generator().manual_seed(1))


def test_labels_are_never_read():
    decoder = decoder_of()
    other = batch_of(label=torch.zeros(B, dtype=torch.int64))
    assert torch.equal(decoder(Z, batch_of()), decoder(Z, other))


def test_before_it_has_learned_it_copies_what_was_and_says_nothing_else():
    decoder, past = LabelDecoder(DIM, CLASSES, depth=DEPTH), torch.full((B, 4, DEPTH), -1)
    assert torch.equal(decoder(Z, batch_of(past)), torch.zeros(B, CLASSES))
    past[:, 0, 0] = 2  # of the pair
    past[:, 2, 0] = 1  # of the source
    expected = torch.tensor([0.0, 1.0, 2.0, 0.0]).expand(B, -1)
    assert torch.allclose(decoder(Z, batch_of(past)), expected, atol=1e-5)


def test_average_precision_of_each_row_is_that_of_the_metrics():
    positive, negative = torch.randint(4, (6, 9)).double(), torch.randint(4, (6, 5)).double()
    expected = [average_precision(*row) for row in zip(positive, negative, strict=True)]
    assert average_precisions(positive, negative).tolist() == pytest.approx(expected)


def test_who_has_been_best_leads_from_the_next_event_on():
    choice = Choice(3)
    for position, merits in ((10, [0.5, 0.6, 0.4]), (20, [0.9, 0.7, 0.4]), (30, [0, 0, 5.0])):
        choice.add(torch.tensor(merits, dtype=torch.float64), position)
    leads = [choice._at(position) for position in (0, 9, 10, 19, 20, 29, 30, 1000)]
    assert leads == [0, 0, 1, 1, 0, 0, 2, 2]


def test_choice_comes_back_from_its_tensors_and_forgets_on_reset():
    choice, other = Choice(2), Choice(2)
    choice.add(torch.tensor([0.0, 1.0], dtype=torch.float64), 10)
    other.load_state_dict(choice.state_dict())
    for each in (choice, other):
        each.add(torch.tensor([3.0, 0.0], dtype=torch.float64), 20)
    assert [other._at(position) for position in (0, 10, 20)] == [0, 1, 0]
    assert all(torch.equal(x, choice.state_dict()[name]) for name, x in other.state_dict().items())
    other.reset()
    assert other.lead == 0
    with pytest.raises(ValueError, match="among 2 does not fit one among 3"):
        Choice(3).load_state_dict(choice.state_dict())
