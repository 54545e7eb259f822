"""Several hops, with and without repeated queries, against lists and dicts."""

import pytest
import torch
from devices import for_each_device, opened
from hypothesis import given
from hypothesis import strategies as st
from strategies import event_lists, graph_events, samplers

from tgflow.events import NO_NODE, EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Sampler, sample_hops, sample_neighbors
from tgflow.sampling import hops as hops_module
from tgflow.sampling.distinct import distinct_queries, first_rows
from tgflow.sampling.hops import hop_key


def queries(events, generator: torch.Generator, size: int = 9):
    """Some nodes, unknown ones and padding among them, at some times of the stream."""
    nodes = torch.randint(-1, 8, (size,), generator=generator)
    at = torch.randint(0, max(1, len(events)), (size,), generator=generator)
    t = events.t[at] + 1 if len(events) else at
    return nodes, t, torch.randint(0, 45, (size,), generator=generator)


@given(
    events=event_lists(labels=True),
    sampler=samplers(),
    fanouts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    cut=st.sampled_from(("none", "one", "each")),
    dedup=st.booleans(),
    seed=st.integers(0, 99),
)
def test_hops_are_what_one_hop_gives_for_each_target(events, sampler, fanouts, cut, dedup, seed):
    graph = TemporalGraph.from_events(events)
    nodes, t, limits = queries(events, torch.Generator().manual_seed(seed))
    before = {"none": None, "one": 20, "each": limits}[cut]
    hops = sample_hops(
        graph, nodes, t, fanouts, sampler=sampler, key=seed, before=before, dedup=dedup
    )
    own_limits = limits.tolist() if cut == "each" else [0] * len(nodes)
    frontier = list(zip(nodes.tolist(), t.tolist(), own_limits, strict=True))
    if dedup:
        assert hops.roots.tolist() == [list(dict.fromkeys(frontier)).index(q) for q in frontier]
        frontier = list(dict.fromkeys(frontier))
    else:
        assert hops.roots.tolist() == list(range(len(nodes)))
    num_rows = len(nodes)
    for number, (hop, k) in enumerate(zip(hops.hops, fanouts, strict=True)):
        assert int(hop.size) == len(frontier)
        frontier += [(NO_NODE, 0, 0)] * (num_rows - len(frontier))
        assert hop.nodes.tolist() == [node for node, _, _ in frontier]
        assert hop.t.tolist() == [when for _, when, _ in frontier]
        expected = sample_neighbors(
            graph, sampler, hop.nodes, hop.t, k, key=hop_key(seed, number),
            before=torch.tensor([limit for _, _, limit in frontier]) if cut == "each" else before,
        )  # fmt: skip
        assert torch.equal(hop.neighbors.eid, expected.eid)
        found = zip(expected.nodes.flatten().tolist(), expected.t.flatten().tolist(), strict=True)
        below = frontier + [
            (node, when, frontier[i // k][2]) for i, (node, when) in enumerate(found)
        ]
        rows = list(range(len(below)))
        if dedup:
            distinct = {query: row for row, query in enumerate(dict.fromkeys(below))}
            rows, below = [distinct[query] for query in below], list(distinct)
        assert hop.row.flatten().tolist() == rows[num_rows:]
        frontier, num_rows = below, num_rows * (1 + k)
    assert len(hops.nodes) == num_rows
    assert int(hops.size) == len(frontier)
    assert hops.nodes.tolist()[: len(frontier)] == [node for node, _, _ in frontier]


def test_all_hops_see_the_events_there_were_at_the_start(monkeypatch):
    graph = TemporalGraph.from_events(graph_events((0, 1, 0), (0, 1, 1)))
    sample = hops_module.sample_neighbors

    def sample_beside_a_writer(*arguments, **options):
        graph.append(graph_events((0, 1, 2), (1, 2, 2)))
        return sample(*arguments, **options)

    monkeypatch.setattr(hops_module, "sample_neighbors", sample_beside_a_writer)
    nodes = torch.tensor([0, 1])
    hops = sample_hops(graph, nodes, torch.full_like(nodes, 9), [4, 4])
    assert graph.num_events == 6
    assert max(int(hop.neighbors.eid.max()) for hop in hops.hops) == 1


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 1)), max_size=30))
def test_sorting_finds_the_rows_that_hashing_finds(rows):
    columns = torch.tensor(rows, dtype=torch.int64).view(-1, 3).T.contiguous()
    _, expected, size = distinct_queries(*columns)
    row, num = first_rows(list(columns))
    assert torch.equal(row, expected)
    assert int(num) == int(size) == len(set(rows))


@for_each_device
@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_every_device_gives_the_same_hops(device, dedup, cut):
    generator = torch.Generator().manual_seed(6)
    src, dst, label = torch.randint(0, 9, (3, 300), generator=generator)
    events = EventBatch(src, dst, torch.arange(300) // 3, label=label)
    graph = TemporalGraph(device=opened(device))
    graph.append(events)
    asked = queries(events, generator, size=20)
    there = [column.to(graph.device) for column in asked]
    for sampler in (Sampler("recent"), Sampler("decayed", 9)):
        how = {"sampler": sampler, "key": 3, "types": range(6), "dedup": dedup}
        mine, expected = (
            sample_hops(g, nodes, t, (3, 2), before=before if cut else 200, **how)
            for g, (nodes, t, before) in (
                (graph, there),
                (TemporalGraph.from_events(events), asked),
            )
        )
        for name in ("roots", "nodes", "t", "size"):
            assert torch.equal(getattr(mine, name).cpu(), getattr(expected, name)), name
        for hop, other in zip(mine.hops, expected.hops, strict=True):
            assert torch.equal(hop.row.cpu(), other.row)
            assert torch.equal(hop.size.cpu(), other.size)
            assert torch.equal(hop.neighbors.eid.cpu(), other.neighbors.eid)
        for layer, other in zip(mine.layers(), expected.layers(), strict=True):
            assert torch.equal(layer.source.cpu(), other.source)
            assert torch.equal(layer.dt.cpu(), other.dt)


def test_an_example_by_hand():
    graph = TemporalGraph.from_events(graph_events((0, 1, 1), (1, 2, 2), (0, 1, 3), (0, 2, 4)))
    hops = sample_hops(graph, torch.tensor([0]), torch.tensor([5]), (2, 1))
    assert hops.hops[0].neighbors.nodes.tolist() == [[2, 1]]
    assert hops.hops[1].nodes.tolist() == [0, 2, 1]
    assert hops.hops[1].t.tolist() == [5, 4, 3]
    assert hops.hops[1].neighbors.nodes.tolist() == [[2], [1], [2]]
    assert hops.hops[1].row.tolist() == [[3], [4], [5]]
    assert hops.nodes.tolist() == [0, 2, 1, 2, 1, 2]
    once = sample_hops(graph, torch.tensor([0]), torch.tensor([5]), (2, 1), dedup=True)
    assert once.nodes.tolist() == [0, 2, 1, 1, 2, NO_NODE]  # (2, 4) is there already
    assert once.hops[1].row.tolist() == [[1], [3], [4]]
    assert int(once.size) == 5


def test_hops_draw_with_keys_of_their_own():
    graph = TemporalGraph.from_events(graph_events(*((0, 0, t) for t in range(1000))))
    node, t = torch.zeros(1, dtype=torch.int64), torch.tensor([1000])
    sampler = Sampler("uniform")
    assert hop_key(5, 0) != hop_key(5, 1)
    hops = sample_hops(graph, node, t, (5, 5), sampler="uniform", key=5)
    again = sample_neighbors(graph, sampler, node, t, 5, key=hop_key(5, 1))
    assert torch.equal(hops.hops[1].neighbors.eid[0], again.eid[0])
    assert not torch.equal(hops.hops[0].neighbors.eid[0], again.eid[0])


@pytest.mark.parametrize("dedup", [False, True])
def test_no_queries_and_an_empty_graph(dedup):
    none = torch.empty(0, dtype=torch.int64)
    hops = sample_hops(TemporalGraph(), none, none, (3, 2), dedup=dedup)
    assert [hop.row.shape for hop in hops.hops] == [(0, 3), (0, 2)]
    hops = sample_hops(TemporalGraph(), torch.tensor([4]), torch.tensor([1]), (2,), dedup=dedup)
    assert hops.nodes.tolist() == [4, NO_NODE, NO_NODE]
    assert [len(layer.source) for layer in hops.layers()] == [0]


def test_mistakes_are_named():
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="fanouts must name the neighbors of at least one hop"):
        sample_hops(TemporalGraph(), one, one, ())
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        sample_hops(TemporalGraph(), one, one, (2, 0))
    with pytest.raises(ValueError, match="strategy window needs a span"):
        sample_hops(TemporalGraph(), one, one, (2,), sampler="window")
