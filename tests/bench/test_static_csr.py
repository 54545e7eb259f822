"""The static CSR of the benches: it answers as the graph does, or a bench stops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.beside_csr import check_equal
from benchmarks.static_csr import StaticCsr
from tgflow.bench.setup import PowerLaw
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors, uniform_neighbors

events_and_cuts = st.tuples(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
)


@given(events_and_cuts, st.sampled_from(["undirected", "directed"]), st.integers(1, 20))
def test_the_csr_answers_as_the_graph_does(events_and_cuts, direction, k):
    listed, cuts = events_and_cuts
    src, dst, gaps = torch.tensor(listed, dtype=torch.int64).view(-1, 3).unbind(1)
    events = EventBatch(src.clone(), dst.clone(), gaps.cumsum(0))
    graph, merged, built = TemporalGraph(direction), StaticCsr(direction), StaticCsr(direction)
    cuts = sorted(min(cut, len(events)) for cut in cuts)
    for start, stop in zip([0, *cuts], [*cuts, len(events)], strict=True):
        graph.append(events[start:stop])
        merged.insert(events[start:stop])
    built.build(graph.log)
    last = int(events.t[-1]) if len(events) else 0
    nodes = torch.arange(-1, 9).repeat_interleave(last + 3)
    t = torch.arange(-1, last + 2).repeat(10)
    for csr in (merged, built):
        assert len(csr) == graph.stats().num_entries
        check_equal("recent", recent_neighbors(graph, nodes, t, k), csr.recent(nodes, t, k))
        ours = uniform_neighbors(graph, nodes, t, k, key=7)
        check_equal("uniform", ours, csr.uniform(nodes, t, k, key=7))
        for before in (0, len(events) // 2):
            expected = recent_neighbors(graph, nodes, t, k, as_of=before)
            check_equal("before", expected, csr.recent(nodes, t, k, before))


def test_a_csr_that_is_built_again_forgets_what_it_held():
    csr, graph = StaticCsr(), TemporalGraph()
    csr.insert(PowerLaw(9).read(0, 50))
    csr.build(graph.log)
    assert len(csr) == 0
    graph.append(PowerLaw(5).read(0, 20))
    csr.build(graph.log)
    nodes, t = torch.arange(9), torch.full((9,), 30)
    check_equal("recent", recent_neighbors(graph, nodes, t, 4), csr.recent(nodes, t, 4))


def test_different_answers_are_an_error():
    graph, csr = TemporalGraph.from_events(PowerLaw(5).read(0, 20)), StaticCsr()
    nodes, t = torch.arange(5), torch.full((5,), 30)
    with pytest.raises(RuntimeError, match="recent: the answers differ in 'nodes'"):
        check_equal("recent", recent_neighbors(graph, nodes, t, 4), csr.recent(nodes, t, 4))
