"""Benchmarks of the store and the samplers: complete rows, valid baselines."""

import json

import pytest

import benchmarks.graph
from benchmarks.device_rebuild import rebuild_rows
from benchmarks.results import skipped
from helpers.devices import opened
from tgflow.cli.benchmarks import graph
from tgflow.cli.benchmarks.row import Row
from tgflow.cli.benchmarks.setup import Options, PowerLaw

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
