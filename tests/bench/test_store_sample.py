"""The benches of the store and the samplers: quick, with rows well formed and true baselines."""

import json
import math
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.devices import opened
from tgflow.bench import peers, sample, store
from tgflow.bench.csr import StaticCsr, check_equal
from tgflow.bench.curves import draw
from tgflow.bench.made import PowerLaw, read, wikipedia
from tgflow.bench.options import QUICK_SIZES, Options
from tgflow.bench.row import Row, skipped
from tgflow.bench.samplers import OWN, contenders, library_rows, share_equal
from tgflow.bench.tiers import tier_rows
from tgflow.bench.turns import take_turns
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors, uniform_neighbors

QUICK = Options(quick=True)


@pytest.fixture(scope="module", params=[store, sample], ids=["store", "sample"])
def measured(request):
    return request.param, request.param.run(QUICK)


def test_rows_are_well_formed_and_json_can_say_them(measured):
    _, rows = measured
    for row in json.loads(json.dumps([row.plain() for row in rows], allow_nan=False)):
        assert row.keys() >= {"name", "params", "value", "unit", "baseline", "ratio", "target"}
        if "skipped" in row["params"]:
            assert row["value"] is None
            assert row["ratio"] is None
        else:
            assert row["value"] > 0
            assert row["unit"]
    assert len({(row.name, *sorted(row.params.items())) for row in rows}) == len(rows)


def test_every_size_has_its_rows_and_a_baseline(measured):
    module, rows = measured
    names = {store: ("insert, bulk", "memory"), sample: ("recent, cold", "update, then sample")}
    for name in names[module]:
        grown = [row for row in rows if row.name == name and row.params["stream"] == "power law"]
        assert {row.params["entries"] for row in grown} == set(QUICK_SIZES)
        assert all(row.baseline is not None and row.baseline > 0 for row in grown)


def test_the_picture_has_a_point_for_every_size(measured):
    module, rows = measured
    root = ET.fromstring(draw(module.PICTURES, rows))
    marks = [element for element in root.iter() if element.tag.endswith("circle")]
    num_curves = sum(len(picture.curves) for picture in module.PICTURES)
    assert len(marks) == num_curves * len(QUICK_SIZES)
    texts = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {picture.title for picture in module.PICTURES} <= texts


@pytest.mark.parametrize("rows_of", [store.growth_rows, sample.growth_rows, tier_rows])
def test_a_graph_on_a_gpu_is_measured_as_one_on_the_cpu_is(rows_of):
    options = Options(quick=True, entries=(10_000,))
    rows = list(rows_of(options, opened("emulated")))
    expected = list(rows_of(options, "cpu"))
    assert [(row.name, row.params.keys()) for row in rows] == [
        (row.name, row.params.keys()) for row in expected
    ]


def test_two_tiers_are_measured_beside_one_and_both_are_read():
    rows = {(row.name, row.params.get("times")): row for row in tier_rows(QUICK, "cpu")}
    assert rows["insert, bulk, two tiers", None].baseline > 0
    for times in ("now", "any"):
        assert rows["recent, two tiers", times].baseline > 0
        assert 0 < rows["neighbors from the device tier", times].value < 1


def test_a_picture_of_nothing_is_empty():
    assert "<g" not in draw(store.PICTURES, [])


def test_ratio_says_how_many_times_better():
    assert Row("rate", 6.0, "events/s", baseline=2.0).ratio == 3
    assert Row("cost", 2.0, "us", baseline=6.0).ratio == 3
    assert Row("rate", 6.0, "events/s", target=2.0).ratio == 3
    assert Row("rate", 6.0, "events/s").ratio is None
    assert skipped("rate", "events/s", {}, "not installed").ratio is None


def test_reached_asks_for_both_the_figure_and_the_ratio():
    assert Row("rate", 6.0, "events/s", target=5.0).reached
    assert not Row("rate", 6.0, "events/s", target=7.0).reached
    assert Row("cost", 6.0, "us", target=7.0).reached
    assert Row("rate", 6.0, "events/s", {}, 5.0, 3.0, 2.0).reached
    assert not Row("rate", 6.0, "events/s", {}, 5.0, 4.0, 2.0).reached
    assert Row("rate", 6.0, "events/s", baseline=5.0).reached is None
    assert skipped("rate", "events/s", {}, "not installed").reached is None


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


def test_the_made_stream_is_the_same_in_any_pieces():
    stream = PowerLaw(100, seed=3)
    edge = PowerLaw.CHUNK
    whole = PowerLaw(100, seed=3).read(edge - 30, edge + 30)
    parts = [stream.read(at, at + 20) for at in range(edge - 30, edge + 30, 20)]
    for column in ("src", "dst", "t"):
        pieces = torch.cat([getattr(part, column) for part in parts])
        assert torch.equal(pieces, getattr(whole, column))
    assert not torch.equal(PowerLaw(100, seed=4).read(0, 60).src, stream.read(0, 60).src)


def test_streams_come_from_the_files_that_are_given(tmp_path):
    paths = [tmp_path / "made.csv", tmp_path / "wikipedia.csv"]
    for i, path in enumerate(paths):
        path.write_text(f"src,dst,t\n{i},5,1\n2,3,4\n", encoding="utf-8")
    assert read(paths[0]).src.tolist() == [0, 2]
    options = Options(data=paths)
    assert list(options.streams()) == ["made", "wikipedia"]
    name, events = options.wikipedia()
    assert (name, events.src.tolist()) == ("wikipedia", [1, 2])
    assert Options(data=paths[:1]).wikipedia()[0] == "made"
    assert Options().wikipedia()[0] == "wikipedia-shaped"


def test_turns_alternate_and_keep_the_best_of_each_call():
    order = []
    calls = {name: lambda i, name=name: order.append((name, i)) for name in "ab"}
    seconds = take_turns(calls, num_calls=2, rounds=2)
    assert [f"{name}{i}" for name, i in order] == ["a0", "b0", "b1", "a1"] * 2
    assert all(len(each) == 2 and math.isfinite(float(each.sum())) for each in seconds.values())


@pytest.mark.parametrize("peer", peers.SAMPLERS, ids=lambda peer: peer.library)
def test_peers_find_the_same_recent_neighbors_where_they_are_installed(peer):
    events, k = wikipedia()[:600], 5
    present, absent = contenders(int(events.dst.max()) + 1, k)
    if peer.library in absent:
        pytest.skip(f"{peer.library} is {absent[peer.library]}")
    for at in range(0, 600, 4):  # of more than k events of a node, PyG keeps any k
        for library in (OWN, peer.library):
            present[library].insert(events[at : at + 4])
    nodes = torch.unique(torch.cat([events.src, events.dst]))
    t = torch.full_like(nodes, int(events.t[-1]) + 1)
    ours, theirs = (present[name].neighbors(nodes, t) for name in (OWN, peer.library))
    assert share_equal(ours, theirs) == 1.0


def test_a_library_that_is_not_installed_has_a_row_that_says_so():
    rows = list(library_rows("two hops", "us", {OWN: 2.0, "slow": 6.0}, {"none": "absent"}, {}))
    assert [row.ratio for row in rows] == [3.0, None, None]
    assert rows[2].params == {"library": "none", "skipped": "absent"}
    assert next(library_rows("two hops", "us", {OWN: 2.0}, {}, {})).baseline is None
