"""The benches of the store and the samplers: quick, with rows well formed and true baselines."""

import json
import math

import pytest
import torch

import benchmarks.sample
import benchmarks.store
from benchmarks.device_rebuild import rebuild_rows
from benchmarks.race import take_turns
from benchmarks.results import skipped
from helpers.devices import opened
from helpers.effort import cases
from tgflow import _core
from tgflow.bench import graph
from tgflow.bench.row import Row
from tgflow.bench.setup import Options, PowerLaw, read

SIZES = (10_000, 60_000)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Return options of little: small graphs, and a file of 2,000 events."""
    path = tmp_path_factory.mktemp("bench") / "wikipedia.csv"
    events = PowerLaw(100).read(0, 2_000)
    columns = zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)
    path.write_text("src,dst,t\n" + "".join(f"{s},{d},{t}\n" for s, d, t in columns))
    return Options(data=[path], quick=True, entries=SIZES, device="cpu")


@pytest.fixture(
    scope="module", params=[benchmarks.store, benchmarks.sample], ids=["store", "sample"]
)
def measured(request, options):
    return request.param, request.param.run(options)


def test_rows_are_well_formed_and_json_can_say_them(measured):
    _, rows = measured
    for row in json.loads(json.dumps([row.to_json() for row in rows], allow_nan=False)):
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
    names = {
        benchmarks.store: ("insert, bulk", "memory", "insert, micro-batches beside a merge"),
        benchmarks.sample: (
            "recent, cold",
            "update, then sample",
            "update, then sample beside a merge",
        ),
    }
    for name in names[module]:
        grown = [row for row in rows if row.name == name and row.params["stream"] == "power law"]
        assert {row.params["entries"] for row in grown} == set(SIZES)
        assert all(row.baseline is not None and row.baseline > 0 for row in grown)


def test_a_core_without_the_csr_is_measured_without_it(monkeypatch, options):
    monkeypatch.delattr(_core, "StaticCsr")
    rows = benchmarks.store.run(options)
    assert {row.name for row in rows} >= {"insert, bulk"}
    assert all(row.baseline is None for row in rows if row.name == "insert, bulk")


@pytest.mark.parametrize(
    "rows_of", cases([graph.store_rows, graph.sample_rows], [graph.store_rows])
)
def test_a_graph_on_a_gpu_is_measured_as_one_on_the_cpu_is(rows_of):
    options = Options(quick=True, entries=(10_000,))
    rows = list(rows_of(options, opened("emulated")))
    expected = list(rows_of(options, "cpu"))
    assert [(row.name, row.params.keys()) for row in rows] == [
        (row.name, row.params.keys()) for row in expected
    ]


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
    assert Row("rate", 6.0, "events/s", {}, 5.0, target_ratio=2.0).reached
    assert Row("rate", 6.0, "events/s", target_ratio=2.0).reached is None
    assert skipped("rate", "events/s", {}, "not installed").reached is None


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


def test_a_graph_is_measured_beside_the_devices_own_rebuild():
    (row,) = rebuild_rows(Options(quick=True, entries=(20_000,)), opened("emulated"))
    assert row.value > 0
    assert row.baseline > 0
