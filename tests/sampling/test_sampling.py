"""Samplers against plain Python, and against the bugs that other systems had."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from helpers.devices import for_each_device, opened, recent_neighbors, uniform_neighbors
from helpers.strategies import event_lists, every_query, graph_events
from tgflow.events import NO_NODE, EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Neighbors
from tgflow.testing import draws, reference


def assert_equal(got: Neighbors, expected: Neighbors) -> None:
    for name in ("nodes", "t", "eid", "count"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=0)


def ask(graph: TemporalGraph, node: int, t: int, k: int) -> list[int]:
    """The recent neighbors of one node."""
    return recent_neighbors(graph, torch.tensor([node]), torch.tensor([t]), k).nodes[0].tolist()


def star(num_events: int) -> EventBatch:
    """Node 0 meets nodes 1, 2, ... at times 1, 2, ..."""
    leaf = torch.arange(1, num_events + 1)
    return EventBatch(torch.zeros_like(leaf), leaf, leaf)


@for_each_device
@given(events=event_lists(), k=st.integers(1, 4), seed=st.integers(0, 100))
def test_a_snapshot_is_the_graph_of_the_events_before_it(device, events, k, seed):
    graph = TemporalGraph.from_events(events, device=opened(device))
    nodes, t = every_query(events)
    generator = torch.Generator().manual_seed(seed)
    before = torch.randint(-1, len(events) + 2, nodes.shape, generator=generator)
    slow = reference.ReferenceGraph(events)
    expected = reference.recent_neighbors(slow, nodes, t, k, before.clamp(min=0))
    assert_equal(recent_neighbors(graph, nodes, t, k, before), expected)
    cut = len(events) // 2
    earlier = TemporalGraph.from_events(events[:cut], device=opened(device))
    assert_equal(recent_neighbors(graph, nodes, t, k, cut), recent_neighbors(earlier, nodes, t, k))


def test_sampling_while_inserting_sees_whole_batches_only():
    """Readers see the events below their snapshot, whatever is being inserted meanwhile."""
    generator = torch.Generator().manual_seed(0)
    size, batch = 20_000, 100
    src = torch.randint(0, 50, (size,), generator=generator)
    dst = torch.randint(0, 2000, (size,), generator=generator)
    events = EventBatch(src, dst, torch.arange(size) // 3)
    graph = TemporalGraph()
    seen: list[tuple[int, Neighbors]] = []
    nodes = torch.arange(50)
    t = torch.full_like(nodes, size)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            before = graph.num_events
            seen.append((before, recent_neighbors(graph, nodes, t, 8, before)))

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(0, size, batch):
        graph.append(events[start : start + batch])
    done.set()
    reader.join()
    for before, neighbors in seen[:: max(1, len(seen) // 50)]:
        assert before % batch == 0
        assert_equal(neighbors, recent_neighbors(graph, nodes, t, 8, before))


@pytest.mark.parametrize("size", [11, 40, 1000])
def test_uniform_is_unbiased_newest_and_oldest_included(size):
    """Floyd's algorithm off by one under-samples the newest neighbor: SALIENT, Ginex."""
    graph = TemporalGraph.from_events(star(size))
    num_queries, k = 20_000, 10
    nodes = torch.zeros(num_queries, dtype=torch.int64)
    t = torch.full_like(nodes, size + 1)
    drawn = uniform_neighbors(graph, nodes, t, k, key=2024)
    assert (drawn.eid[:, :-1] > drawn.eid[:, 1:]).all(), "not distinct, newest first"
    counts = drawn.eid.flatten().bincount(minlength=size)
    assert chisquare(counts.numpy()).pvalue > 1e-4
    expected = num_queries * k / size
    for end in (counts[0], counts[-1]):
        assert abs(int(end) - expected) < 5 * expected**0.5


@for_each_device
def test_first_interaction_never_returns_the_target_edge(device):
    """GNNFlow returned the target edge itself: random modulo 0."""
    events = graph_events((0, 1, 10))
    graph = TemporalGraph.from_events(events, device=opened(device))
    query = torch.tensor([0, 1]), torch.tensor([10, 10])
    for neighbors in (
        recent_neighbors(graph, *query, 3),
        uniform_neighbors(graph, *query, 3, key=0),
        uniform_neighbors(graph, *query, 3, key=0, as_of=0),
    ):
        assert neighbors.nodes.tolist() == [[NO_NODE] * 3] * 2
        assert neighbors.count.tolist() == [0, 0]


@for_each_device
@pytest.mark.parametrize("clock", [1_600_000_000, 1_600_000_000_000_000_000])
def test_times_one_tick_apart_are_told_apart(device, clock):
    """float32 times step by 128 s at Unix scale: TGL, TGLite, GNNFlow."""
    graph = TemporalGraph.from_events(
        graph_events((0, 1, clock), (0, 2, clock + 1)), device=opened(device)
    )
    assert ask(graph, 0, clock + 1, 2) == [1, NO_NODE]
    assert ask(graph, 0, clock + 2, 2) == [2, 1]


@for_each_device
def test_ties_are_ordered_by_position_and_invisible_to_their_own_time(device):
    graph = TemporalGraph.from_events(
        graph_events((0, 1, 5), (0, 2, 5), (0, 3, 5), (0, 4, 6)), device=opened(device)
    )
    assert ask(graph, 0, 6, 2) == [3, 2]
    assert ask(graph, 0, 5, 2) == [NO_NODE, NO_NODE]


def test_mistakes_are_named():
    graph = TemporalGraph.from_events(star(3))
    nodes, t = torch.tensor([0, 1]), torch.tensor([5, 5])
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        recent_neighbors(graph, nodes, t, 0)
    with pytest.raises(
        ValueError, match=r"t must be int64 \[2\] on the CPU, got torch.float32 \[2\]"
    ):
        recent_neighbors(graph, nodes, t.float(), 1)
    with pytest.raises(
        ValueError, match=r"t must be int64 \[2\] on the CPU, got torch.int64 \[1\]"
    ):
        recent_neighbors(graph, nodes, t[:1], 1)
    with pytest.raises(ValueError, match=r"as_of must be int64 \[2\]"):
        recent_neighbors(graph, nodes, t, 1, as_of=torch.tensor([1]))
    with pytest.raises(ValueError, match=r"key must be in \[0, 2\*\*64\), got -1"):
        uniform_neighbors(graph, nodes, t, 1, key=-1)


def test_philox_matches_the_published_vectors():
    """Known answers of Random123's kat_vectors, philox4x32 with 10 rounds."""
    ones = 2**32 - 1
    assert draws.philox(0, (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert draws.philox(2**64 - 1, (ones,) * 4) == (
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    )  # fmt: skip
