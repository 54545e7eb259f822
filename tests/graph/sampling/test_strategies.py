"""Every sampler, with and without a type filter, against plain Python; errors."""

import resource
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.devices import for_each_device, opened, sample_neighbors
from helpers.effort import cases
from helpers.strategies import RELATIONS, event_lists, every_query, graph_events, samplers
from tgflow import _core
from tgflow.cuda.sampling import KERNELS
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.graph.sampling import (
    STRATEGIES,
    Neighbors,
    Sampler,
    decayed_neighbors,
    recent_neighbors,
    sample_hops,
    uniform_neighbors,
    window_neighbors,
)
from tgflow.testing import reference
from tgflow.testing.reference import ReferenceGraph

ALL = [
    Sampler.recent(),
    Sampler.uniform(),
    Sampler.window(width=500),
    Sampler.decayed(half_life=90),
]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
by_name = pytest.mark.parametrize("sampler", ALL, ids=lambda sampler: sampler.strategy)


def assert_equal(got, expected):
    for name in ("nodes", "t", "eid", "count"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=0)


@for_each_device
@given(
    events=event_lists(relations=True),
    sampler=samplers(),
    relations=st.none() | st.sets(st.sampled_from(RELATIONS)),
    k=st.integers(1, 5),
    key=st.integers(0, 2**64 - 1),
    as_of=st.none() | st.integers(0, 40) | st.just("each"),
    since=st.integers(0, 40),
)
def test_every_sampler_matches_reference(device, events, sampler, relations, k, key, as_of, since):
    graph = TemporalGraph.from_events(events, device=opened(device))
    nodes, t = every_query(events)
    if as_of == "each":
        generator = torch.Generator().manual_seed(key % 100)
        as_of = torch.randint(0, len(events) + 2, nodes.shape, generator=generator)
    since = min(since, len(events))
    options = {"key": key, "as_of": as_of, "since": since, "relations": relations}
    expected = reference.sample_neighbors(ReferenceGraph(events), sampler, nodes, t, k, **options)
    assert_equal(sample_neighbors(graph, sampler, nodes, t, k, **options), expected)


@for_each_device
@given(
    events=event_lists(relations=True),
    late=event_lists(relations=True),
    sampler=samplers(),
    relations=st.none() | st.sets(st.sampled_from(RELATIONS)),
    k=st.integers(1, 5),
    data=st.data(),
)
def test_horizon_has_the_answers_of_a_graph_of_the_later_events(
    device, events, late, sampler, relations, k, data
):
    """Late events, merged into the past, are inside by their times."""
    graph = TemporalGraph.from_events(events, device=opened(device))
    since = data.draw(st.integers(0, len(events)))
    clock = graph.log.native.since(since)[0]
    late = late[late.t >= clock] if since else late
    graph.append(late, allow_late=True)
    rest = TemporalGraph(device=opened(device))
    rest.append(events[since:])
    rest.append(late, allow_late=True)
    nodes, t = every_query(events)
    options = {"key": 3, "relations": relations} if len(rest.log) else {"key": 3}
    found = sample_neighbors(graph, sampler, nodes, t, k, since=since, **options)
    expected = sample_neighbors(rest, sampler, nodes, t, k, **options)
    expected.eid[expected.eid >= 0] += since
    assert_equal(found, expected)


def test_neighbors_match_a_hand_computed_example():
    """Ties are ordered by position, and are not visible at their own time."""
    graph = TemporalGraph.from_events(graph_events((0, 1, 5), (0, 2, 5), (0, 3, 5), (0, 4, 6)))
    nodes, t = torch.tensor([0, 0, 1]), torch.tensor([6, 5, 5])
    found = recent_neighbors(graph, nodes, t, 2)
    assert found.nodes.tolist() == [[3, 2], [-1, -1], [-1, -1]]
    assert found.count.tolist() == [2, 0, 0]


@cache
def long_histories(half_life):
    """Return events, their graph, and query nodes and times."""
    generator = torch.Generator().manual_seed(half_life)
    size = 6000
    src = torch.randint(0, 30, (size,), generator=generator) ** 3 // 900
    dst = torch.randint(0, 30, (size,), generator=generator)
    t = torch.randint(0, 40, (size,), generator=generator).float().pow(2).long().cumsum(0)
    relation = torch.tensor(RELATIONS)[torch.randint(0, 5, (size,), generator=generator)]
    events = EventBatch(src, dst, t // 100 + 1_600_000_000, relation=relation)
    nodes = torch.randint(0, 30, (40,), generator=generator)
    times = events.t[torch.randint(0, size, (40,), generator=generator)]
    return events, ReferenceGraph(events), nodes, times


@cache
def expected_of(half_life, relations):
    """Return the expected neighbors of every sampler for every k, the same on all devices."""
    _, graph, *query = long_histories(half_life)
    lasting = (Sampler.window(width=20 * half_life), Sampler.decayed(half_life=half_life))
    options = {"key": 5, "relations": relations, "as_of": 5500}
    return [
        (sampler, k, reference.sample_neighbors(graph, sampler, *query, k, **options))
        for k in (1, 10, 90)
        for sampler in (*ALL[:2], *lasting)
    ]


@for_each_device
@pytest.mark.parametrize("half_life", cases([1, 100, 10_000], [100]))
@pytest.mark.parametrize("relations", cases([None, (1, 64)], [(1, 64)]))
def test_long_histories_match_reference(device, half_life, relations):
    """Many blocks per node, buckets of every size, and draws of the whole history."""
    events, _, *query = long_histories(half_life)
    graph = TemporalGraph(device=opened(device))
    for start in range(0, len(events), 700):
        graph.append(events[start : start + 700])
    for sampler, k, expected in expected_of(half_life, relations):
        found = sample_neighbors(graph, sampler, *query, k, key=5, relations=relations, as_of=5500)
        assert_equal(found, expected)


@by_name
@pytest.mark.parametrize("relations", [None, (0, 2)])
def test_answers_do_not_depend_on_threads(sampler, relations):
    events = EventBatch(
        torch.zeros(5000, dtype=torch.int64), torch.arange(5000), torch.arange(5000),
        relation=torch.arange(5000) % 3,
    )  # fmt: skip
    graph = TemporalGraph.from_events(events)
    nodes, t = torch.zeros(3000, dtype=torch.int64), torch.arange(3000) * 2
    before = _core.num_threads()
    answers = []
    for num_threads in (1, 2, 4):
        _core.set_num_threads(num_threads)
        answers.append(sample_neighbors(graph, sampler, nodes, t, 7, key=3, relations=relations))
    _core.set_num_threads(before)
    for answer in answers[1:]:
        assert_equal(answer, answers[0])


@pytest.mark.parametrize("clock", [-(2**63), 2**63 - 4])
def test_large_spans_do_not_overflow(clock):
    graph = TemporalGraph.from_events(graph_events((0, 1, clock), (0, 2, clock + 2)))
    node, t = torch.tensor([0]), torch.tensor([clock + 3])
    for span in (1, 2**63 - 1):
        seen = window_neighbors(graph, node, t, 2, width=span, key=0)
        assert seen.nodes.tolist() == [[2, -1] if span == 1 else [2, 1]]
        assert decayed_neighbors(graph, node, t, 2, half_life=span, key=0).nodes.tolist() == [
            [2, 1]
        ]
    ends = TemporalGraph.from_events(graph_events((0, 1, -(2**63)), (0, 2, 2**63 - 2)))
    t = torch.tensor([2**63 - 1])
    assert decayed_neighbors(ends, node, t, 1, half_life=1, key=0).nodes.tolist() == [[2]]


def test_mistakes_are_named():
    graph = TemporalGraph.from_events(graph_events((0, 1, 1)))
    query = torch.tensor([0]), torch.tensor([5])
    expected = r"t must be int64 \[1\] on the CPU, got torch."
    with pytest.raises(ValueError, match=expected + r"float32 \[1\]"):
        recent_neighbors(graph, query[0], query[1].float(), 1)
    with pytest.raises(ValueError, match=expected + r"int64 \[0\]"):
        recent_neighbors(graph, query[0], query[1][:0], 1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        recent_neighbors(graph, *query, 0)
    with pytest.raises(ValueError, match=r"as_of must be int64 \[1\]"):
        recent_neighbors(graph, *query, 1, as_of=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"key must be in \[0, 2\*\*64\), got -1"):
        uniform_neighbors(graph, *query, 1, key=-1)
    with pytest.raises(ValueError, match="the graph's events have no relations"):
        recent_neighbors(graph, *query, 1, relations=[0])
    with pytest.raises(ValueError, match=r"relations must be in \[0, 65535\], got -1"):
        recent_neighbors(graph, *query, 1, relations=[-1])
    with pytest.raises(ValueError, match="width must be at least 1 tick, got 0"):
        window_neighbors(graph, *query, 1, width=0, key=0)
    with pytest.raises(ValueError, match="half_life must be at least 1 tick, got -5"):
        decayed_neighbors(graph, *query, 1, half_life=-5, key=0)
    with pytest.raises(ValueError, match="strategy window needs a span: its width"):
        Sampler("window")
    with pytest.raises(ValueError, match="strategy uniform takes no span, got 3"):
        Sampler("uniform", 3)
    with pytest.raises(ValueError, match=r"strategy must be one of recent, .*, got 'newest'"):
        Sampler("newest")
    with pytest.raises(
        ValueError, match=r"out.nodes must be contiguous torch.int64 \[1, 1\] on the CPU"
    ):
        uniform_neighbors(graph, *query, 1, key=0, out=Neighbors.empty(1, 2))


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="no huge pages"
)
def test_large_results_take_huge_pages():
    """A page fault per 4 KB would cost twice the time of the look-ups."""
    graph = TemporalGraph.from_events(EventBatch([0], [1], [20]))
    nodes, t = torch.zeros(150_000, dtype=torch.int64), torch.full((150_000,), 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    found = recent_neighbors(graph, nodes, t, 10)  # 36 MB: glibc returns as much when it is freed
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 3 * found.nodes.nbytes / 4096 / 2


def test_every_strategy_is_handled_everywhere():
    """A strategy missing somewhere raises an error there."""
    assert set(KERNELS) == set(STRATEGIES)
    assert set(_core.Strategy.__members__) == set(STRATEGIES)
    assert {sampler.strategy for sampler in ALL} == set(STRATEGIES)


@pytest.mark.parametrize("of", [np.array, list, lambda x: np.array(x, np.int32)])
def test_arrays_and_lists_are_asked_like_tensors(of):
    events = EventBatch([0, 1, 0], np.array([2, 3, 3]), [10, 20, 30])
    graph = TemporalGraph.from_events(events)
    nodes, t = [0, 3], [40, 40]
    tensors = torch.tensor(nodes), torch.tensor(t)
    found = recent_neighbors(graph, of(nodes), of(t), k=2, as_of=of([3, 2]))
    expected = recent_neighbors(graph, *tensors, k=2, as_of=torch.tensor([3, 2]))
    assert found.eid.tolist() == expected.eid.tolist()
    hops, expected = (sample_hops(graph, *q, (2, 1)) for q in ((of(nodes), of(t)), tensors))
    assert hops.frontiers[2].nodes.tolist() == expected.frontiers[2].nodes.tolist()
    with pytest.raises(ValueError, match=r"nodes must be integers, got float64"):
        sample_hops(graph, [0.5, 1], of(t), (2,))
    with pytest.raises(ValueError, match="one length, got 2 and 1"):
        sample_hops(graph, of(nodes), of([1]), (2,))
    for odd in (0, None):
        with pytest.raises(ValueError, match="nodes must be"):
            recent_neighbors(graph, odd, of(t), k=2)
    fixed = np.array(nodes)
    fixed.flags.writeable = False  # as of a data frame's column
    with warnings.catch_warnings(action="error"):
        assert recent_neighbors(graph, fixed, of(t), k=2).nodes.tolist()


UNKNOWN = [-1, -5, 4, 10**12, -(2**63), 2**63 - 1]
"""Nodes that a graph of the nodes 0 to 3 does not have; the first is `NO_NODE`."""


@for_each_device
@by_name
@pytest.mark.parametrize("dedup", [False, True])
def test_nodes_that_the_graph_does_not_have_have_no_neighbors(device, sampler, dedup):
    events = graph_events((0, 2, 10), (1, 3, 20), (0, 3, 30), (1, 2, 40))
    graph = TemporalGraph.from_events(events, device=opened(device))
    nodes, t = torch.tensor([*UNKNOWN, 0]), torch.full((7,), 50)
    found = sample_neighbors(graph, sampler, nodes, t, 2, key=1)
    assert found.count.tolist() == [0] * 6 + [2]
    for column, empty in ((found.nodes, -1), (found.t, 0), (found.eid, -1)):
        assert column[:6].tolist() == [[empty, empty]] * 6
    hops = sample_hops(
        graph, nodes.to(graph.device), t.to(graph.device), (2, 1), sampler=sampler, dedup=dedup
    )
    assert hops.frontiers[1].nodes.cpu()[:7].tolist() == nodes.tolist()
    for block in hops.blocks:
        assert not block.mask.cpu()[:6].any()
        assert block.mask.cpu()[6].any()
