"""Negatives by types of nodes: against a slow reference, without a look ahead."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tgflow as tg
from helpers.effort import tries
from helpers.made_streams import made_events
from tgflow.plan.negatives import NegativeSampler, PairHistory

TYPES = (0, 1, 1, 2, 2, 2, 0)
"""Of the nodes 0 to 6."""
pair_lists = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=40)
keys = st.integers(0, 2**64 - 1)


def types_of(nodes):
    return torch.tensor(TYPES)[nodes]


def columns(pairs):
    return torch.tensor(pairs, dtype=torch.int64).unbind(1)


def graph_of(pairs, *, typed=True, types=types_of):
    src, dst = columns(pairs)
    graph = tg.TemporalGraph.from_events(tg.EventBatch(src, dst, torch.arange(len(pairs))))
    graph.log.node_types = types if typed else None
    return graph


def of_type(nodes, dst):
    """Return the nodes that a destination may be replaced by."""
    return {node for node in nodes if TYPES[node] == TYPES[dst] and node != dst}


def span_of(pairs, data):
    begin = data.draw(st.integers(0, len(pairs) - 1))
    return begin, data.draw(st.integers(begin + 1, len(pairs)))


def draw(source, graph, begin, end, key):
    events = graph.log.read(begin, end)
    start = torch.full_like(events.src, begin)
    history = PairHistory(graph.log)
    return source.draw(history, key, events.src, events.dst, start=start, stop=end)


@settings(max_examples=tries(200), deadline=None)
@given(pairs=pair_lists, data=st.data(), key=keys)
def test_random_negatives_have_the_type_of_the_destination(pairs, data, key):
    begin, end = span_of(pairs, data)
    assume(len({node for pair in pairs[:end] for node in pair}) > 1)
    found = draw(NegativeSampler(random=3), graph_of(pairs), begin, end, key)
    known, later = ({dst for _, dst in pairs[:stop]} for stop in (begin, end))
    num_fallbacks = 0
    for (_, dst), row in zip(pairs[begin:end], found.dst.tolist(), strict=True):
        eligible = of_type(known, dst)
        others = later - {dst} or {u for u, _ in pairs[:end]} - {dst}
        assert {*row} <= (eligible or of_type(later, dst) or others)
        num_fallbacks += 3 * (not eligible)
    assert found.num_fallbacks == num_fallbacks
    again = draw(NegativeSampler(random=3), graph_of(pairs[:end]), begin, end, key)
    assert torch.equal(again.dst, found.dst), "later events change nothing"


@settings(max_examples=tries(200), deadline=None)
@given(
    pairs=pair_lists,
    data=st.data(),
    key=keys,
    numbers=st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)).filter(any),
    pooled=st.booleans(),
)
def test_lists_are_distinct_and_have_the_type_of_the_destination(pairs, data, key, numbers, pooled):
    begin, end = span_of(pairs, data)
    pool = None
    if pooled:
        dst = columns(pairs)[1]
        pool = PairHistory.of_pool(dst, types_of)
    mixed = NegativeSampler(*numbers, distinct=True, pool=pool)
    found = draw(mixed, graph_of(pairs), begin, end, key)
    plain = draw(mixed, graph_of(pairs, typed=False), begin, end, key)
    mask = torch.ones_like(found.dst, dtype=torch.bool) if found.mask is None else found.mask
    known = {dst for _, dst in (pairs if pooled else pairs[:begin])}
    for i, (_, dst) in enumerate(pairs[begin:end]):
        row = found.dst[i][mask[i]].tolist()
        assert len({*row}) == len(row)
        drawn = found.dst[i, : mixed.random][mask[i, : mixed.random]].tolist()
        hard = row[len(drawn) :]
        assert {*hard} <= of_type({d for _, d in pairs[:begin]}, dst)
        assert {*drawn} <= (eligible := of_type(known, dst) - {*hard})
        assert len(drawn) == min(mixed.random, len(eligible))
        for log_q in found.log_q[i, : len(drawn)].exp().tolist():
            assert log_q == pytest.approx(len(eligible) / len(drawn))
        if plain.mask is None:  # the hard ones are those without types, but for other types
            others = plain.dst[i, mixed.random :].tolist()
            assert [*hard] == [node for node in others if node in of_type(others, dst)]


@settings(max_examples=tries(50), deadline=None)
@given(pairs=pair_lists, data=st.data())
def test_all_known_destinations_of_the_type_are_ranked(pairs, data):
    assume(len({dst for _, dst in pairs}) > 1)
    graph = graph_of(pairs)
    cut = data.draw(st.one_of(st.none(), st.just(len(pairs))))
    negatives = NegativeSampler(1, among_all=True, cut=cut)
    plan = tg.Plan.for_model(tg.Recency(), graph, batch_size=7, negatives=negatives)
    for index in range(len(plan)):
        begin, end = plan.draws.span(index)
        try:
            part = plan.part(0, index, slice(0, end - begin))
        except ValueError:
            assert len({node for pair in pairs[:end] for node in pair}) == 1
            continue
        known = {dst for _, dst in pairs[: begin if cut is None else cut]}
        known = known or {dst for _, dst in pairs[:end]}
        for i, (_, dst) in enumerate(pairs[begin:end]):
            row = part.negative_dst[i][part.negative_mask[i]].tolist()
            assert len({*row}) == len(row)
            assert of_type(known, dst) == {*row[1:]} | ({row[0]} & of_type(known, dst))


def test_whole_batches_in_one_call_and_hop_by_hop_draw_the_same():
    graph = tg.TemporalGraph.from_events(made_events(60))
    graph.log.node_types = lambda nodes: nodes % 3
    for source in (NegativeSampler(random=4), NegativeSampler(random=3, source=2)):
        plan = tg.Plan.for_model(tg.TGN(memory_dim=4), graph, batch_size=10, negatives=source)
        whole = plan.batch(0, 4)
        assert torch.equal(whole.negative_dst, plan.of_roots(plan.draws.roots(0, 4)).negative_dst)
        assert bool((whole.negative_dst % 3 == whole.dst.unsqueeze(1) % 3).all())


def test_one_type_gives_the_negatives_without_types():
    pairs = [(i % 5, i * i % 7) for i in range(40)]
    graphs = graph_of(pairs, typed=False), graph_of(pairs, types=torch.zeros_like)
    for source in (
        NegativeSampler(random=3),
        NegativeSampler(3, 2, 2),
        NegativeSampler(historical=1),
    ):
        first, second = (draw(source, graph, 20, 30, 7) for graph in graphs)
        assert torch.equal(first.dst, second.dst)


def test_pool_is_drawn_by_type():
    dst = torch.tensor([1, 2, 3, 4, 0])
    pool = NegativeSampler(20, pool=PairHistory.of_pool(dst, types_of))
    asked = torch.tensor([1, 3, 0])
    start = torch.zeros(3, dtype=torch.int64)
    found = pool.draw(PairHistory(), 3, asked, asked, start=start, stop=0)
    assert [{*row} for row in found.dst.tolist()] == [{2}, {4}, {1, 2, 3, 4}]
    assert found.num_fallbacks == 20, "no other node has the type of 0"


def test_types_are_of_all_events_or_of_none():
    history = PairHistory()
    src, dst = columns([(0, 1), (0, 2)])
    history.append(src, dst)
    with pytest.raises(ValueError, match="types of nodes must be given for all events or for none"):
        history.native.append(src.clone(), dst.clone(), types_of(dst))
    for wrong in (-1, 65_536):
        with pytest.raises(IndexError, match="type must be from 0 to 65535"):
            PairHistory().native.append(src.clone(), dst.clone(), torch.tensor([0, wrong]))
