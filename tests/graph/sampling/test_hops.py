"""Several hops, with and without repeated queries, against lists and dicts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.devices import for_each_device, opened
from helpers.strategies import event_lists, graph_events, samplers
from tgflow import NO_NODE, EventBatch, Sampler, TemporalGraph, sample_hops
from tgflow.base.keys import KeyDomain, derive_key
from tgflow.graph.sampling import hops as hops_module
from tgflow.graph.sampling import sample_neighbors, to_blocks


def queries(events, generator, size=9):
    """Some nodes, including unknown ones and padding, at some times of the stream."""
    nodes = torch.randint(-1, 8, (size,), generator=generator)
    at = torch.randint(0, max(1, len(events)), (size,), generator=generator)
    t = events.t[at] + 1 if len(events) else at
    return nodes, t, torch.randint(0, 45, (size,), generator=generator)


@given(
    events=event_lists(relations=True),
    sampler=samplers(),
    fanouts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    cut=st.sampled_from(("none", "one", "each")),
    dedup=st.booleans(),
    seed=st.integers(0, 99),
)
def test_hops_match_repeated_single_hop_sampling(events, sampler, fanouts, cut, dedup, seed):
    graph = TemporalGraph.from_events(events)
    nodes, t, limits = queries(events, torch.Generator().manual_seed(seed))
    as_of = {"none": None, "one": 20, "each": limits}[cut]
    hops = sample_hops(
        graph, nodes, t, fanouts, sampler=sampler, key=seed, as_of=as_of, dedup=dedup
    )
    own_limits = limits.tolist() if cut == "each" else [0] * len(nodes)
    frontier = list(zip(nodes.tolist(), t.tolist(), own_limits, strict=True))
    if dedup:
        assert hops.roots.tolist() == [list(dict.fromkeys(frontier)).index(q) for q in frontier]
        frontier = list(dict.fromkeys(frontier))
    else:
        assert hops.roots.tolist() == list(range(len(nodes)))
    for number, (targets, block, k) in enumerate(
        zip(hops.frontiers, hops.blocks, fanouts, strict=False)
    ):
        assert int(targets.size) == len(frontier)
        assert targets.nodes.tolist() == [node for node, _, _ in frontier]
        assert targets.t.tolist() == [when for _, when, _ in frontier]
        found = sample_neighbors(
            graph, sampler, targets.nodes, targets.t, k,
            key=derive_key(seed, KeyDomain.HOP + number),
            as_of=torch.tensor([limit for _, _, limit in frontier]) if cut == "each" else as_of,
        )  # fmt: skip
        assert torch.equal(block.eid, found.eid)
        assert torch.equal(block.mask, found.mask)
        dt = (targets.t.unsqueeze(1) - found.t) * found.mask
        assert torch.equal(block.dt, dt.double().float())
        slots = zip(found.nodes.flatten().tolist(), found.t.flatten().tolist(), strict=True)
        below = [(node, when, frontier[i // k][2]) for i, (node, when) in enumerate(slots)]
        if dedup:
            present = [query for query in below if query[0] != NO_NODE]
            lower = list(dict.fromkeys(frontier + present))
            rows = [lower.index(query) if query[0] != NO_NODE else 0 for query in below]
            assert block.target.tolist() == [lower.index(query) for query in frontier]
        else:
            lower = frontier + below
            rows = list(range(len(frontier), len(lower)))
            assert block.target.tolist() == list(range(len(frontier)))
        assert block.neighbor.flatten().tolist() == rows
        frontier = lower
    assert hops.inputs.nodes.tolist() == [node for node, _, _ in frontier]
    assert int(hops.inputs.size) == len(frontier)


def test_all_hops_see_the_events_present_at_the_start(monkeypatch):
    graph = TemporalGraph.from_events(graph_events((0, 1, 0), (0, 1, 1)))
    sample = hops_module.sample_neighbors

    def sample_beside_a_writer(*arguments, **options):
        graph.append(graph_events((0, 1, 2), (1, 2, 2)))
        return sample(*arguments, **options)

    monkeypatch.setattr(hops_module, "sample_neighbors", sample_beside_a_writer)
    nodes = torch.tensor([0, 1])
    hops = sample_hops(graph, nodes, torch.full_like(nodes, 9), [4, 4])
    assert graph.num_events == 6
    assert max(int(block.eid.max()) for block in hops.blocks) == 1


@for_each_device
@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_hops_are_the_same_on_every_device(device, dedup, cut):
    generator = torch.Generator().manual_seed(6)
    src, dst, relation = torch.randint(0, 9, (3, 300), generator=generator)
    events = EventBatch(src, dst, torch.arange(300) // 3, relation=relation)
    graph = TemporalGraph(device=opened(device))
    graph.append(events)
    asked = queries(events, generator, size=20)
    there = [column.to(graph.device) for column in asked]
    for sampler in (Sampler.recent(), Sampler.decayed(half_life=9)):
        how = {"sampler": sampler, "key": 3, "relations": range(6), "dedup": dedup}
        mine, expected = (
            sample_hops(g, nodes, t, (3, 2), as_of=as_of if cut else 200, **how)
            for g, (nodes, t, as_of) in ((graph, there), (TemporalGraph.from_events(events), asked))
        )
        assert torch.equal(mine.roots.cpu(), expected.roots)
        for frontier, other in zip(mine.frontiers, expected.frontiers, strict=True):
            size = int(frontier.size)
            assert size == int(other.size)
            assert torch.equal(frontier.nodes[:size].cpu(), other.nodes)
            assert torch.equal(frontier.t[:size].cpu(), other.t)
        for block, other in zip(mine.blocks, expected.blocks, strict=True):
            for name in ("target", "neighbor", "mask", "dt", "eid"):
                rows = getattr(block, name)[: len(other.target)]
                assert torch.equal(rows.cpu(), getattr(other, name)), name
        for block, other in zip(to_blocks(mine), to_blocks(expected), strict=True):
            assert torch.equal(block.source.cpu(), other.source)
            assert torch.equal(block.dt.cpu(), other.dt)


def test_neighbors_match_a_hand_computed_example():
    graph = TemporalGraph.from_events(graph_events((0, 1, 1), (1, 2, 2), (0, 1, 3), (0, 2, 4)))
    hops = sample_hops(graph, torch.tensor([0]), torch.tensor([5]), (2, 1))
    assert hops.frontiers[1].nodes.tolist() == [0, 2, 1]
    assert hops.frontiers[1].t.tolist() == [5, 4, 3]
    assert hops.blocks[0].neighbor.tolist() == [[1, 2]]
    assert hops.blocks[0].dt.tolist() == [[1.0, 2.0]]
    assert hops.blocks[1].neighbor.tolist() == [[3], [4], [5]]
    assert hops.inputs.nodes.tolist() == [0, 2, 1, 2, 1, 2]
    once = sample_hops(graph, torch.tensor([0]), torch.tensor([5]), (2, 1), dedup=True)
    assert once.inputs.nodes.tolist() == [0, 2, 1, 1, 2]  # (2, 4) is there already
    assert once.blocks[1].neighbor.tolist() == [[1], [3], [4]]
    assert int(once.inputs.size) == 5


def test_mistakes_are_named():
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="fanouts must name the neighbors of at least one hop"):
        sample_hops(TemporalGraph(), one, one, ())
