"""Relations of events: in batches of every form, and in the log."""

from __future__ import annotations

import pytest
import torch

import tgflow as tg
from helpers.made_streams import made_events
from tgflow.plan.replay import ExperienceReplay


def related(relation, size=60):
    events = made_events(size)
    return tg.EventBatch(events.src, events.dst, events.t, relation=relation)


def plan_of(events, **options):
    graph = tg.TemporalGraph.from_events(events)
    return tg.Plan.for_model(tg.TGN(memory_dim=4), graph, batch_size=10, **options)


def forms(plan):
    """Yield a batch in every form: whole, hop by hop, slices, parts, replayed events."""
    yield plan.batch(0, 3)
    yield plan.of_roots(plan.draw(0, 3))
    yield from plan.share(0, 3, range(plan.slices)).slices
    if plan.replay is None:
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
