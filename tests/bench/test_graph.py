"""Benchmarks of the store and the samplers: complete rows, valid baselines."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import benchmarks.graph
from benchmarks import peers
from benchmarks.device_rebuild import rebuild_rows
from benchmarks.graph import OWN, check_equal, library_rows, samplers, share_equal
from benchmarks.results import skipped
from benchmarks.static_csr import StaticCsr
from helpers.devices import opened
from tgflow.bench import graph
from tgflow.bench.row import Row
from tgflow.bench.setup import Options, PowerLaw, wikipedia
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors, uniform_neighbors

SIZES = (10_000, 60_000)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Return options with small graphs and a file of 2,000 events."""
    path = tmp_path_factory.mktemp("bench") / "wikipedia.csv"
    events = PowerLaw(100).read(0, 2_000)
    columns = zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)
    path.write_text("src,dst,t\n" + "".join(f"{s},{d},{t}\n" for s, d, t in columns))
    return Options(data=[path], quick=True, entries=SIZES, device="cpu")


@pytest.mark.parametrize(
    ("run", "beside"),
    [
        (
            benchmarks.graph.store,
            ("insert, bulk", "insert, micro-batches beside a merge"),
        ),
        (benchmarks.graph.sample, ("recent, cold", "uniform, cold")),
    ],
)
def test_rows_are_complete_and_have_baselines(run, beside, options):
    rows = run(options)
    for row in json.loads(json.dumps([row.to_json() for row in rows], allow_nan=False)):
        assert row["unit"]
        assert (row["value"] is None) == ("skipped" in row["params"])
        assert row["value"] is None or row["value"] > 0
    assert len({(row.name, *sorted(row.params.items())) for row in rows}) == len(rows)
    for name in beside:
        made = [row for row in rows if row.name == name and row.params["stream"] == "power law"]
        assert {row.params["entries"] for row in made} == set(SIZES)
        assert all(row.baseline is not None and row.baseline > 0 for row in made)


def test_gpu_graph_has_the_same_benchmark_rows_as_cpu():
    options = Options(quick=True, entries=(10_000,))
    found = []
    for device in (opened("emulated"), "cpu"):
        growing, params = next(graph.grown_graphs(options, device))
        found.append(
            [(row.name, row.params.keys()) for row in graph.store_rows(growing, params, 2)]
        )
    assert found[0] == found[1]
    (row,) = rebuild_rows(Options(quick=True, entries=(20_000,)), opened("emulated"))
    assert min(row.value, row.baseline) > 0


def test_ratio_and_targets_of_a_row():
    assert Row("rate", 6.0, "events/s", baseline=3.0, target=100.0).ratio == 2
    assert Row("cost", 6.0, "us", baseline=3.0).ratio == 0.5
    assert Row("rate", 6.0, "events/s", target=2.0).ratio == 3
    assert Row("rate", 6.0, "events/s").ratio is None
    assert Row("rate", 6.0, "events/s", target=5.0).reached
    assert not Row("rate", 6.0, "events/s", target=7.0).reached
    assert Row("cost", 6.0, "us", target=7.0).reached
    assert Row("rate", 6.0, "events/s", {}, 5.0, 3.0, 2.0).reached
    assert not Row("rate", 6.0, "events/s", {}, 5.0, 4.0, 2.0).reached
    assert Row("rate", 6.0, "events/s", target_ratio=2.0).reached is None
    none = skipped("rate", "events/s", {}, "not installed")
    assert (none.ratio, none.reached) == (None, None)


@pytest.mark.parametrize("peer", peers.SAMPLERS, ids=lambda peer: peer.library)
def test_installed_peers_find_the_same_recent_neighbors(peer):
    events, k = wikipedia()[:600], 5
    present, absent = samplers(events, k)
    if peer.library in absent:
        pytest.skip(f"{peer.library} is {absent[peer.library]}")
    for at in range(0, 600, 4):  # of more than k events of a node PyG keeps an arbitrary k
        for library in (OWN, peer.library):
            present[library].insert(events[at : at + 4])
    nodes = torch.unique(torch.cat([events.src, events.dst]))
    t = torch.full_like(nodes, int(events.t[-1]) + 1)
    ours, theirs = (present[name].neighbors(nodes, t) for name in (OWN, peer.library))
    assert share_equal(ours, theirs) == 1.0


def test_missing_library_gives_a_skipped_row():
    rows = list(library_rows("two hops", "us", {OWN: 2.0, "slow": 6.0}, {"none": "absent"}, {}))
    assert [row.ratio for row in rows] == [3.0, None, None]
    assert rows[2].params == {"library": "none", "skipped": "absent"}
    assert next(library_rows("two hops", "us", {OWN: 2.0}, {}, {})).baseline is None


events_and_cuts = st.tuples(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
)


@given(events_and_cuts, st.sampled_from(["undirected", "directed"]), st.integers(1, 20))
def test_csr_matches_the_graph(events_and_cuts, direction, k):
    listed, cuts = events_and_cuts
    src, dst, gaps = torch.tensor(listed, dtype=torch.int64).view(-1, 3).unbind(1)
    events = EventBatch(src.clone(), dst.clone(), gaps.cumsum(0))
    graph, merged, built = TemporalGraph(direction), StaticCsr(direction), StaticCsr(direction)
    built.insert(PowerLaw(9).read(0, 50))  # which a build replaces
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


def test_different_answers_raise():
    graph, csr = TemporalGraph.from_events(PowerLaw(5).read(0, 20)), StaticCsr()
    nodes, t = torch.arange(5), torch.full((5,), 30)
    with pytest.raises(RuntimeError, match="recent: the answers differ in 'nodes'"):
        check_equal("recent", recent_neighbors(graph, nodes, t, 4), csr.recent(nodes, t, 4))
