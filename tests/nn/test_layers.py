"""Layers against their equations, and node tables."""

import math
from collections import Counter
from dataclasses import replace
from math import exp, log1p
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from helpers.effort import cases, tries
from helpers.emulator import Emulator
from helpers.kernels import made_block
from helpers.plans import plan_of
from helpers.strategies import graph_events, skewed_events
from tgflow import TemporalGraph, _core
from tgflow.cuda.dropout import keep_factors
from tgflow.graph.batch import Targets
from tgflow.nn import (
    CrossAttention,
    Dropout,
    DropoutKeys,
    LinkDecoder,
    LogTimeEncoding,
    MemoryRows,
    MemoryUpdater,
    Mixer,
    NodeMemory,
    NodeTable,
    PairFeatures,
    Pairs,
    TimeEncoding,
    aggregate,
)
from tgflow.nn.attention import attend
from tgflow.nn.choice import Choice
from tgflow.nn.co_occurrence import co_occurrence
from tgflow.nn.decoder import SKIP_GAIN
from tgflow.nn.label_decoder import LabelDecoder
from tgflow.nn.layers import TransformerLayer
from tgflow.plan import NegativeSampler
from tgflow.testing.reference import philox


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


def test_cross_attention_matches_torch_with_a_normed_feed_forward():
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


def test_query_without_tokens_attends_to_nothing():
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
def test_layer_matches_its_equations(training):
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
def test_segment_means_of_the_next_tokens(parts):
    torch.manual_seed(0)
    layer, x = TransformerLayer(6, 2, 0.3).eval(), torch.randn(3, 8, 6)
    expected = layer(x).view(3, parts, 8 // parts, 6).mean(dim=2)
    torch.testing.assert_close(layer.means(x, parts), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dt", [0.0, 1e-3, 1.0, 1e4, 2.6e6, 3e9])
def test_time_encoding_is_the_cosine_of_the_float32_phase(dt):
    encoding = TimeEncoding(100)
    dt = dt * torch.linspace(0.5, 1, 30)
    phase = (dt.unsqueeze(-1) * encoding.frequency).double()
    torch.testing.assert_close(encoding(dt), phase.cos().float(), rtol=0, atol=7e-7)
    block = replace(made_block(30, 1, 1, 0, seed=0, dtype=torch.float32), dt=dt.view(30, 1))
    block = replace(block, mask=torch.ones(30, 1, dtype=torch.bool))
    native = attend(torch.randn(1, 30, 100), None, block, encoding, None).inputs[0]
    torch.testing.assert_close(native, phase.cos().float(), rtol=0, atol=1e-6)


def test_log_time_encoding_matches_a_hand_computed_example():
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
def test_updater_matches_the_torch_cell_on_the_whole_message(cell):
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


@torch.no_grad()
def test_kept_memory_is_computed_again_only_for_rows_that_were_written(monkeypatch):
    torch.manual_seed(0)
    memory, updater = NodeMemory(2, 4), MemoryUpdater(2, 4, TimeEncoding(3), "gru")
    after, stepped = MemoryUpdater._after, []

    def counted(self, rows, seconds):
        stepped.append(len(rows))
        return after(self, rows, seconds)

    def write(nodes, position):
        num, t = len(nodes), torch.full((len(nodes),), 9 * position)
        mail = torch.randn(num, 4)
        memory.write(torch.tensor(nodes), torch.randn(num, 2), t - 5, mail, t, position)

    def is_same(nodes, position):
        nodes = torch.tensor(nodes, dtype=torch.int64)
        rows = memory.read(nodes, torch.full_like(nodes, position))
        return torch.equal(updater(rows, 0.5), updater(replace(rows, nodes=None), 0.5))

    monkeypatch.setattr(MemoryUpdater, "_after", counted)
    memory.keep_past(10)
    updater.keep()
    write([0, 1, 3], 2)
    assert is_same([0, 3, 2, 5, 0], 2)
    write([3, 4], 4)
    assert is_same([3, 0, 1, 4], 4)
    assert is_same([3, 0], 3), "an earlier version is not kept"
    assert is_same([], 4)
    assert is_same([3, 0, 4, 1], 4)
    assert stepped == [3, 5, 3, 4, 2, 2, 0, 4], "kept, then all"
    for parameter in updater.parameters():
        parameter.add_(0.1)
    assert not is_same([3], 4)
    updater.keep()
    assert is_same([3], 4)


def counted(own, others, mask, pairs):
    """Reference that counts pairs and nodes."""
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
    torch.nn.init.normal_(decoder.out.weight)  # as after training
    return decoder


Z = torch.randn(2 * B, DIM, generator=torch.Generator().manual_seed(1))


def test_labels_are_never_read():
    decoder = decoder_of()
    other = batch_of(label=torch.zeros(B, dtype=torch.int64))
    assert torch.equal(decoder(Z, batch_of()), decoder(Z, other))


def test_untrained_label_decoder_copies_past_labels():
    decoder, past = LabelDecoder(DIM, CLASSES, depth=DEPTH), torch.full((B, 4, DEPTH), -1)
    assert torch.equal(decoder(Z, batch_of(past)), torch.zeros(B, CLASSES))
    past[:, 0, 0] = 2  # of the pair
    past[:, 2, 0] = 1  # of the source
    expected = torch.tensor([0.0, 1.0, 2.0, 0.0]).expand(B, -1)
    assert torch.allclose(decoder(Z, batch_of(past)), expected, atol=1e-5)


def test_best_choice_leads_from_the_next_event_on():
    choice = Choice(3)
    for position, merits in ((10, [0.5, 0.6, 0.4]), (20, [0.9, 0.7, 0.4]), (30, [0, 0, 5.0])):
        choice.add(torch.tensor(merits, dtype=torch.float64), position)
    leads = [choice._at(position) for position in (0, 9, 10, 19, 20, 29, 30, 1000)]
    assert leads == [0, 0, 1, 1, 0, 0, 2, 2]


def table_of(size=8, unknown=0.0) -> NodeTable:
    torch.manual_seed(0)
    return NodeTable(size, 3, unknown)


def rows_of(table, nodes):
    return table(nodes, torch.ones_like(nodes, dtype=torch.bool))


def test_padding_rows_do_not_mark_nodes_as_known():
    table = table_of()
    table(torch.tensor([3, 0, 0]), torch.tensor([True, False, False]))
    assert torch.equal(rows_of(table.eval(), torch.arange(7)), table.rows[[0, 0, 0, 4, 0, 0, 0]])


def test_nodes_are_unknown_until_learned():
    table, nodes = table_of().eval(), torch.tensor([2, 5])
    assert torch.equal(rows_of(table, nodes), table.rows[[0, 0]])
    rows_of(table.train(), torch.tensor([5]))
    assert torch.equal(rows_of(table.eval(), nodes), table.rows[[0, 6]])


def test_ids_beyond_the_table_share_rows_evenly():
    table = table_of(size=101)
    nodes = torch.arange(100, 100_100)
    row = table.row_of(torch.cat([nodes, torch.tensor([2**31 - 1, 2**62])]))
    assert table.row_of(torch.arange(100)).tolist() == list(range(1, 101))
    assert 1 <= int(row.min()) <= int(row.max()) <= 100
    counts = row[: len(nodes)].bincount(minlength=101)[1:]
    assert 850 < int(counts.min()) <= int(counts.max()) < 1150


def test_share_of_nodes_trains_the_unknown_row():
    table = table_of(size=1001, unknown=0.1)
    found = rows_of(table, torch.arange(1000))
    is_unknown = (found == table.rows[0]).all(dim=1)
    assert 60 < int(is_unknown.sum()) < 140
    found.sum().backward()
    assert table.rows.grad[0].tolist() == [float(is_unknown.sum())] * 3
    assert torch.equal(rows_of(table.eval(), torch.arange(1000)), table.rows[1:])


def test_table_requires_a_row_besides_the_unknown():
    with pytest.raises(ValueError, match="size of at least 2, got 1"):
        NodeTable(1, 3)


PAIRS = PairFeatures(["recency"])
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def columns(num: int, age: float | None) -> list[float]:
    if age is None:
        return [0.0] * 6
    return [1.0, log1p(num), log1p(age) / 16, *(exp(-age / s) for s in (HOUR, DAY, WEEK))]


def test_pair_features_are_its_history_in_seconds() -> None:
    events = graph_events((0, 1, 0), (1, 0, 500), (0, 1, 1000), (2, 1, 2000), (0, 1, 7000))
    graph = TemporalGraph.from_events(events, time_unit="ms")
    plan = plan_of(
        graph, batch_size=1, counts=PAIRS.counts, replay=None,
        negatives=NegativeSampler(historical=1),
    )  # fmt: skip
    batch = plan.batch(0, 4)
    assert (int(batch.negative_src), int(batch.negative_dst)) in [(1, 0), (2, 1)]
    event, negative = PAIRS(batch, Pairs.of(batch))
    expected = [*columns(2, 6.0), *columns(1, 6.5), *columns(3, 6.0), *columns(3, 5.0)]
    torch.testing.assert_close(event, torch.tensor(expected))
    if int(batch.negative_src) == 1:
        expected = [*columns(1, 6.5), *columns(2, 6.0), *columns(3, 6.0), *columns(1, 6.5)]
    else:
        expected = [*columns(1, 5.0), *columns(0, None), *columns(1, 5.0), *columns(3, 5.0)]
    torch.testing.assert_close(negative, torch.tensor(expected))


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_untrained_decoder_ranks_pairs_by_recency(unit: str) -> None:
    """The pair's latest event in either direction decides, then the destination's."""
    ticks = 1000 if unit == "ms" else 1
    past = (6, 3, 50), (0, 2, 100), (6, 5, 1000), (3, 0, 8000), (6, 4, 9000), (0, 1, 9990)
    events = graph_events(*((src, dst, t * ticks) for src, dst, t in (*past, (0, 9, 10_000))))
    graph = TemporalGraph.from_events(events, time_unit=unit)
    batch = plan_of(
        graph, batch_size=7, counts=PAIRS.counts, negatives=NegativeSampler(random=99)
    ).batch(0, 0)
    skip = LinkDecoder(6, pair_features=["recency"]).pair_skip
    assert skip is not None
    with torch.no_grad():
        logits = SKIP_GAIN * skip(PAIRS(batch, Pairs.of(batch))).view(-1)
    by_dst = dict(zip(batch.negative_dst[-1].tolist(), logits[-99:].tolist(), strict=True))
    by_dst[9] = float(logits[6])
    assert sorted(by_dst, key=by_dst.__getitem__, reverse=True) == [1, 3, 2, 4, 0, 5, 9]
    assert by_dst[9] == 0.0  # nothing is known
    p = d = log1p(9900) / 16
    assert by_dst[2] == pytest.approx(6 * (1 - p) + 3 * (0.7 - d), rel=1e-5)


def test_missing_counts_are_refused_by_the_link_decoder() -> None:
    graph = TemporalGraph.from_events(skewed_events(30, 5))
    batch = replace(plan_of(graph).batch(0, 1), counts=None)
    with pytest.raises(
        ValueError, match="pair features need 24 counts of the past, the batch has 0"
    ):
        LinkDecoder(6, pair_features=["recency"])(torch.zeros(99, 6), batch)


KEY = torch.tensor([0x1234_5678_9ABC_DEF0])


def drawn_by_core(key: torch.Tensor, rate: float, *shape: int) -> torch.Tensor:
    out = torch.full(shape, -1.0)
    _core.keep_factors(key=key, rate=rate, out=out)
    return out


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (0, (0,) * 4, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0_A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(key, counter, words):
    assert philox(key, counter) == words


def test_dropout_draws_are_keyed_by_row_and_position():
    factors = drawn_by_core(KEY, 0.25, 3, 11)
    for row in range(3):
        words = [philox(int(KEY), (row, 0, i // 4, 0))[i % 4] for i in range(11)]
        kept = [float(word >= 0.25 * 2**32) / 0.75 for word in words]
        torch.testing.assert_close(factors[row], torch.tensor(kept), atol=0, rtol=1e-7)


@pytest.mark.parametrize("order", cases([0, 1, 7], [0, 7]))
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (2, 30), (3, 2_051)])
def test_dropout_draws_of_the_kernel_match_the_core(shape, order):
    for rate in (0.0, 0.1, 0.75):
        out = torch.full(shape, -1.0)
        keep_factors(Emulator(order=order), key=KEY, rate=rate, out=out)
        assert torch.equal(out, drawn_by_core(KEY, rate, *shape))


def made_model() -> torch.nn.Module:
    return torch.nn.Sequential(Dropout(0.5), torch.nn.Identity(), Dropout(0.5))


def test_keyed_dropout_is_a_function_of_key_and_position():
    model, x = made_model(), torch.ones(4, 300)
    keys = DropoutKeys(model)

    def drawn(key: int) -> list[torch.Tensor]:
        with keys.keyed(key):
            return [model[0](x), model[2](x)]

    first, second = drawn(7)
    assert not torch.equal(first, second)  # each module has its own draws
    torch.rand(5)
    again = DropoutKeys(other := made_model())
    with again.keyed(7):
        assert torch.equal(other[0](x), first)
        assert torch.equal(other[2](x), second)
    assert not torch.equal(drawn(8)[0], first)
    assert torch.equal(drawn(7)[0], first)


def test_captured_dropout_uses_the_key_set_at_its_replay():
    model, x = made_model(), torch.ones(300)
    keys = DropoutKeys(model)
    with keys.keyed(3):
        expected = model(x)
    keys.set(3)
    with keys.keyed():
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize(("rate", "training"), [(0.4, True), (0.4, False), (0.0, True)])
def test_fused_gelu_dropout_matches_values_and_gradients_of_both(rate, training):
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


def embeddings_of(by_node, batch):
    """Return the rows of the top frontier of a batch."""
    rows = torch.zeros(4 * batch.negative_dst.numel(), by_node.shape[1])
    for place, node in (
        (batch.src_row, batch.src),
        (batch.dst_row, batch.dst),
        (batch.negative_dst_row, batch.negative_dst),
    ):
        rows[place] = by_node[node]
    return rows


@given(seed=st.integers(0, 99), m=st.integers(2, 5), every=st.integers(2, 4))
def test_slots_without_a_negative_are_not_scored(seed: int, m: int, every: int) -> None:
    graph = TemporalGraph.from_events(skewed_events(60, 20, seed))
    whole, some = (
        plan_of(graph, counts=PAIRS.counts, negatives=NegativeSampler(random=m, every=of))
        for of in (1, every)
    )
    decoder = LinkDecoder(6, pair_features=["recency"])
    for index in range(1, len(some)):
        found, batch = (plan.batch(0, index) for plan in (whole, some))
        mask = batch.negative_mask
        assert mask is not None
        assert len(Pairs.of(batch).src_row) == len(mask) + int(mask.sum())
        by_node = torch.randn(graph.num_nodes, 6, generator=torch.Generator().manual_seed(seed))
        expected, scores = (decoder(embeddings_of(by_node, each), each) for each in (found, batch))
        torch.testing.assert_close(scores.positive, expected.positive)
        torch.testing.assert_close(scores.negative[mask], expected.negative[mask])
        assert torch.equal(
            scores.negative[~mask], scores.positive.repeat_interleave(m)[~mask.flatten()]
        )
