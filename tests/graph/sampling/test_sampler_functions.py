"""Python samplers match native ones and cannot return events a query must not see."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tgflow as tg
from helpers.devices import opened
from helpers.made_streams import made_events
from helpers.plans import assert_same_batch, each_variant, recent_plan
from helpers.strategies import event_lists, every_query
from tgflow import Loader, Sampler, TemporalGraph
from tgflow.base.peers import Shard
from tgflow.graph.sampling import sample_neighbors
from tgflow.testing.reference import ReferenceGraph


def recent(graph, nodes, t, before, since, k, key):
    """Find the latest events of each node in plain Python, oldest first."""
    log = ReferenceGraph(graph.log.read(0, graph.num_events), graph.direction)
    rows = []
    for node, time, limit in zip(nodes.tolist(), t.tolist(), before.tolist(), strict=True):
        eids = [eid for _, eid, _ in log.seen(node, time, limit) if eid >= since][-k:]
        rows.append([-1] * (k - len(eids)) + eids)
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), k)


@given(event_lists(), st.integers(1, 4), st.sampled_from(["undirected", "directed"]), st.data())
def test_function_equal_to_recent_returns_its_neighbors(events, k, direction, data):
    graph = TemporalGraph.from_events(events, direction=direction)
    nodes, t = every_query(events)
    limits = st.integers(0, len(events) + 3)
    each = st.lists(limits, min_size=len(nodes), max_size=len(nodes)).map(torch.tensor)
    as_of = data.draw(st.none() | limits | each.map(lambda column: column.to(torch.int64)))
    limits = {"as_of": as_of, "since": data.draw(st.integers(0, len(events)))}
    found = sample_neighbors(graph, Sampler.of(recent), nodes, t, k, **limits)
    native = sample_neighbors(graph, Sampler.recent(), nodes, t, k, **limits)
    for name in ("nodes", "t", "eid", "count"):
        assert torch.equal(getattr(found, name), getattr(native, name)), name


@each_variant
def test_batches_of_a_function_match_the_strategy(variant):
    graph = TemporalGraph.from_events(made_events(90))
    native = recent_plan(graph, **variant | {"strategy": "recent"})
    plan = recent_plan(graph, **variant | {"strategy": recent})
    for batch in Loader(plan, num_threads=2):
        assert_same_batch(batch, native.batch(0, batch.index))


EVENTS = tg.EventBatch(*torch.tensor([[0, 1, 0, 0], [1, 2, 2, 1], [10, 20, 30, 30]]))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[2, -1]], "returned 2 for row 0, which is not earlier than the query's time"),
        ([[3, -1]], "returned 3 for row 0, which is not below the query's cut-off"),
        ([[99, 0]], "returned 99 for row 0, which is not below the query's cut-off"),
        ([[0, 1]], "returned 1 for row 0, which is not an edge of the query's node"),
        ([[0, 0]], "returned 0 for row 0, more than once"),
        ([[0, -2]], "returned -2 for row 0, which is not a log position"),
        ([[0, -1]], "returned 0 for row 0, which is before the horizon"),
        ([[0]], r"must return int64 \[1, 2\], got torch.int64 \[1, 1\]"),
        ([[0.0, 1.0]], r"must return int64 \[1, 2\], got torch.float32 \[1, 2\]"),
        (None, r"must return int64 \[1, 2\], got NoneType"),
    ],
)
def test_function_that_returns_a_wrong_event_is_refused(returned, message):
    graph = TemporalGraph.from_events(EVENTS)
    answer = None if returned is None else torch.tensor(returned)
    since = 1 if "horizon" in message else 0
    sampler = Sampler.of(lambda graph, nodes, t, before, since, k, key: answer)
    with pytest.raises(ValueError, match=message):
        sample_neighbors(
            graph, sampler, torch.tensor([0]), torch.tensor([30]), 2, as_of=3, since=since
        )


def test_function_is_refused_where_unsupported():
    graph, one = TemporalGraph.from_events(EVENTS), torch.tensor([0])
    there = TemporalGraph.from_events(EVENTS, device=opened("apart"))
    shard = TemporalGraph.from_events(EVENTS, shard=Shard(0, 2))
    for other, message in ((there, "requires a graph on the CPU"), (shard, "the whole graph")):
        with pytest.raises(ValueError, match=message):
            recent_plan(other, strategy=recent)
        with pytest.raises(ValueError, match=message):
            sample_neighbors(other, Sampler.of(recent), one, one, 1)
    with pytest.raises(ValueError, match="takes no span, got 5"):
        recent_plan(graph, strategy=recent, span=5)
    for limits in ({"relations": [1]}, {"rows": one}):
        with pytest.raises(ValueError, match="takes neither relations= nor rows="):
            sample_neighbors(graph, Sampler.of(recent), one, one, 1, **limits)
    with pytest.raises(ValueError, match="strategy"):
        tg.train.ContinualConfig(strategy=recent)  # type: ignore[arg-type]
