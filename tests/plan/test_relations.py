"""Relations of events: in batches of every form, and in the log."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tgflow as tg
from helpers.effort import tries
from helpers.made_streams import made_events
from helpers.strategies import event_lists
from tgflow.graph.events import with_inverses
from tgflow.plan import ExperienceReplay, NegativeSampler


def related(relation, size=60):
    events = made_events(size)
    return tg.EventBatch(events.src, events.dst, events.t, relation=relation)


def plan_of(events, **options):
    graph = tg.TemporalGraph.from_events(events)
    return tg.Plan.for_model(tg.TGN(memory_dim=4), graph, batch_size=10, **options)


def forms(plan):
    """Yield a batch in every form: whole, hop by hop, slices, parts, replayed events."""
    yield plan.batch(0, 3)
    yield plan.of_roots(plan.draws.roots(0, 3))
    yield from (plan.batch(0, 3, number) for number in range(plan.draws.slices))
    if plan.draws.replay is None:
        yield plan.part(0, 3, slice(2, 7))


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("replay", [None, ExperienceReplay(ratio=0.5, horizon=40, half_life=10.0)])
def test_batches_of_every_form_have_the_relations_of_their_events(slices, replay):
    relation = torch.arange(60) * 7 % 5
    plan = plan_of(related(relation), slices=slices, replay=replay)
    for batch in forms(plan):
        assert torch.equal(batch.relation, relation[batch.eid])
    for batch in forms(plan_of(related(None), slices=slices, replay=replay)):
        assert batch.relation is None


@pytest.mark.parametrize("value", [-1, 65_536])
def test_batches_and_logs_refuse_relations_out_of_range(value):
    relation = torch.zeros(60, dtype=torch.int64).index_fill(0, torch.tensor([3]), value)
    with pytest.raises(ValueError, match=rf"relation of event 3 is {value}; relations must be in"):
        related(relation)
    events = made_events(60)
    columns = {"src": events.src, "dst": events.dst, "t": events.t, "relation": relation}
    graph = tg.TemporalGraph()
    with pytest.raises(ValueError, match=rf"event 3 has relation={value}; relations must be in"):
        graph.append(tg.EventBatch.checked(**columns))
    assert graph.num_events == 0


def test_log_requires_relations_of_all_events_or_none():
    graph = tg.TemporalGraph.from_events(related(None))
    later = related(torch.zeros(60, dtype=torch.int64))
    with pytest.raises(ValueError, match="the batch has relations but the log has none"):
        graph.append(later, allow_late=True)


def test_inverses_follow_their_events_with_relations_of_their_own():
    src, dst, t = torch.tensor([[0, 1], [2, 3], [5, 6]])
    weight = torch.tensor([0.5, 2.0])
    events = tg.EventBatch(src, dst, t, weight=weight, relation=torch.tensor([4, 0]))
    assert with_inverses(events).to_arrow().to_pydict() == {
        "src": [0, 2, 1, 3],
        "dst": [2, 0, 3, 1],
        "t": [5, 5, 6, 6],
        "relation": [8, 9, 0, 1],
        "weight": [0.5, 0.5, 2.0, 2.0],
    }
    assert with_inverses(tg.EventBatch(src, dst, t)).relation.tolist() == [0, 1, 0, 1]
    assert len(with_inverses(events[:0])) == 0
    with pytest.raises(ValueError, match="relation of event 2 is 65536"):
        with_inverses(replace(events, relation=torch.tensor([0, 32_768])))


@settings(max_examples=tries(20), deadline=None)
@given(events=event_lists(max_events=20, max_node=3, relations=True), data=st.data())
def test_filtered_parts_leave_out_true_destinations(events, data):
    assume(len(events) > 1)
    relation = data.draw(st.sampled_from([None, events.relation % 2]))
    events = replace(events, relation=relation, t=events.t // 3)
    graph = tg.TemporalGraph.from_events(events)
    negatives = NegativeSampler(1, among_all=True, filtered=True, cut=len(events))
    plan = tg.Plan.for_model(tg.Recency(), graph, batch_size=7, negatives=negatives)
    columns = events.src, torch.zeros_like(events.t) if relation is None else relation, events.t
    rows = [*zip(*(column.tolist() for column in columns), strict=True)]
    dst = events.dst.tolist()
    assume(len({*dst}) > 1)
    for index in range(len(plan)):
        begin, end = plan.draws.span(index)
        size = data.draw(st.integers(1, end - begin))
        part = plan.part(0, index, slice(0, size))
        for i, eid in enumerate(range(begin, begin + size)):
            true = {d for row, d in zip(rows, dst, strict=True) if row == rows[eid]}
            found = part.negative_dst[i][part.negative_mask[i]].tolist()
            assert sorted(found) == sorted({*dst} - true)


def test_scores_of_pairs_with_relations_match_those_of_events():
    events = related(torch.arange(60) * 7 % 5)
    graph = tg.TemporalGraph.from_events(events)
    model = tg.SmoothedCounts(groups=("recency", "relations"))
    engine = tg.Inference(model, graph)
    expected = model(tg.Plan.for_model(model, graph, batch_size=60).batch(0, 0)).positive
    some = events[50:]
    asked = some.src, some.dst, some.t
    found = engine.score(*asked, as_of=torch.arange(50, 60), relation=some.relation)
    assert torch.equal(found, expected[50:])
    ranked = engine.rank(some.src[:1], some.t[:1], k=3, relation=int(some.relation[0]))
    each = engine.score(some.src[:1], ranked.nodes, some.t[:1], relation=some.relation[:1])
    assert torch.equal(ranked.scores, each)
    with pytest.raises(ValueError, match=r"counts events by relation: give .*relation=\.\.\. "):
        engine.score(*asked)
    with pytest.raises(ValueError, match=r"relation must be in \[0, 65535\], got -1"):
        engine.score(*asked, relation=-1)


@pytest.mark.parametrize("kind", [tg.TGN, tg.TGAT])
def test_decoder_reads_the_relation_of_the_event_for_its_negatives_too(kind):
    settings = {"memory_dim": 8} if kind is tg.TGN else {}
    model = kind(num_relations=3, embedding_dim=8, pair_features=(), **settings).eval()
    graph = tg.TemporalGraph.from_events(related(torch.arange(60) % 4))
    plan = tg.Plan.for_model(model, graph, batch_size=20)
    batch = plan.batch(0, 1)
    before = model(batch)
    with torch.no_grad():
        model.decoder.relations.weight[2] += 1.0
    after = model(batch)
    changes = batch.relation % 3 == 2
    for old, new in ((before.positive, after.positive), (before.negative, after.negative)):
        assert torch.equal((old != new).view(20, -1).any(1), changes)
    after.positive.sum().backward()
    assert model.decoder.relations.weight.grad.abs().sum() > 0
    without = tg.Plan.for_model(model, tg.TemporalGraph.from_events(related(None)), batch_size=20)
    with pytest.raises(ValueError, match=r"embeds relations, and the events have none: name their"):
        model(without.batch(0, 1))
