"""Benchmarks of training at tiny sizes: complete rows, optional peers, alternating turns."""

import math
from dataclasses import replace

import pytest
import torch

import benchmarks.train
from benchmarks import peers, reuse, threads, train_device, train_models
from benchmarks.own import Task, own_tgn
from benchmarks.report import BESIDE
from benchmarks.results import Result
from helpers.emulator.device import EmulatedDevice
from helpers.made_streams import made_events
from tgflow.base.extras import install_command
from tgflow.cli.benchmarks import train
from tgflow.cli.benchmarks.setup import Options
from tgflow.graph.events import EventBatch


def made_task() -> Task:
    draw = torch.Generator().manual_seed(0)
    src = torch.randint(8, (120,), generator=draw)
    x = torch.randn(120, 6, generator=draw)
    events = EventBatch(src, 8 + src % 3, torch.arange(120) * 5, x)
    return Task(events, 100, batch_size=10, dim=8, neighbors=3, lr=1e-2)


@pytest.mark.parametrize(
    "peer",
    [*peers.TGN, *peers.TGAT, *peers.GRAPHMIXER, *peers.DYGFORMER, *peers.TPNET],
    ids=lambda peer: peer.adapter,
)
def test_installed_peers_run_the_same_task(peer):
    contender = peers.load(peer, made_task())
    if contender == peer.not_installed:
        pytest.skip(f"{peer.library} is {contender}")
    assert not isinstance(contender, str), contender
    losses = contender.train(4) + contender.train(100)
    assert len(losses) == made_task().num_batches
    assert all(math.isfinite(loss) for loss in losses)
    positive, negative = contender.evaluate()
    assert len(positive) == len(negative) == 20


def test_rows_of_missing_peers_explain_how_to_install_them(monkeypatch):
    def not_installed(name):
        raise peers.PackageNotFoundError(name)

    monkeypatch.setattr(peers, "version", not_installed)
    given = made_task(), {"stream": "made"}, Options()
    rows = benchmarks.train.tgn_rows(*given) + benchmarks.train.tgat_rows(*given)
    rows += train_models.rows_of(*given)
    skipped = [row for row in rows if "skipped" in row.params]
    assert len(skipped) == len(peers.TGN) + len(peers.TGAT) + 4
    assert {row.params["library"]: row.params["skipped"] for row in skipped} == {
        "torch_geometric": f"not installed: {install_command('bench')}",
        "tgm-lib": f"not installed: {install_command('bench')}",
        "tglite": "not installed: build it from its sdist, see tests/benchmarks/peers/tglite.py",
    }
    assert all(math.isnan(row.value) and row.ratio is None for row in skipped)
    measured = {row.name: row for row in rows if "skipped" not in row.params}
    assert "TGN training, beside a peer" not in measured
    assert all(math.isfinite(row.value) for row in measured.values())


def test_peer_time_replaces_frequencies_and_reference_of_a_peer():
    for kind, linear in ((kind, torch.nn.Linear(1, 10)) for kind in ("example", "fixed", "age")):
        task, before = replace(made_task(), peer_time=kind), linear.weight.detach().clone()
        task.set_frequencies(linear)
        fixed = (10.0 ** -torch.linspace(0, 9, 10)).unsqueeze(1)
        assert torch.equal(linear.weight, before if kind == "example" else fixed)
        assert linear.weight.requires_grad == linear.bias.requires_grad == (kind == "example")
        reference = task.encoded_to(torch.tensor([3, 5]), torch.tensor([7, 9]))
        assert reference.tolist() == ([7, 7] if kind == "age" else [3, 5])


def test_held_out_ap_has_a_row_per_library_and_setting(monkeypatch):
    asked = []
    monkeypatch.setattr(peers, "load", lambda peer, task: asked.append(task) or own_tgn(task))
    rows = benchmarks.train.held_out(Options(quick=True, events=400))
    found = [(row.params["settings"], row.params["library"]) for row in rows]
    libraries = ["tgflow", "tgflow", *(peer.library for peer in peers.TGN)]
    for settings, changes in benchmarks.train.SETTINGS.items():
        own = slice(2, None) if "peer_time" in changes else slice(None)
        assert [library for of, library in found if of == settings] == libraries[own]
    assert {(task.peer_time, task.lr, task.seed) for task in asked} == {
        (*each, seed)
        for each in (("example", 1e-4), ("fixed", 1e-4), ("age", 1e-4), ("example", 1e-3))
        for seed in (0, 1)
    }
    assert all(0 <= row.value <= 1 for row in rows)


def test_one_benchmark_measures_the_table_of_libraries(monkeypatch):
    monkeypatch.setattr(peers, "load", lambda peer, *given: peer.not_installed)
    monkeypatch.setattr(benchmarks.train, "has_bfloat16", lambda: False)
    rows = benchmarks.train.libraries(Options(quick=True, events=2_000, device="cpu"))
    for pick in BESIDE.values():
        shown = pick.of({pick.result: Result("", "", "", "", tuple(rows))})
        assert pick.result == "libraries"
        assert "tgflow" in {row.params["library"] for row in shown}


def test_user_benchmark_has_a_row_per_model():
    rows = train.train(Options(quick=True, events=2_000, device="cpu"))
    assert [row.name for row in rows] == ["TGN training", "TGAT training"]
    assert all(row.value > 0 for row in rows)


def test_training_on_a_device_is_measured_for_each_batch_size(monkeypatch):
    for name, value in {"BATCHES": (8,), "BESIDE_BATCH": 8, "APPENDED": 50}.items():
        monkeypatch.setattr(train_device, name, value)
    monkeypatch.setattr(train_device, "APPENDS_A_SECOND", 5)
    given = made_task(), {}, EmulatedDevice(), Options(quick=True)
    live, *rows = train_device.device_rows(*given)
    rows, (beside, *others) = rows[:4], rows[4:]
    assert (live.params["negatives"], live.params["replay"]) == (20, 0.5)
    assert [(row.name, row.params["batch"]) for row in rows] == [
        ("TGN training on the device", 8),
        ("epoch with look-ahead", 8),
        ("TGAT training on the device", 8),
        ("epoch with look-ahead", 8),
    ]
    assert all(row.value > 0 for row in [live, *rows])
    assert beside.params["appended/s"] > 0
    speeds = [row for row in others if row.params.get("library") == "tgflow"]
    assert [(row.name.split()[0], row.params["visibility"]) for row in speeds] == [
        ("TGN", "batch"),
        ("TGN", "event"),
        ("TGAT", "batch"),
        ("TGAT", "event"),
    ]
    assert all(row.value > 0 for row in speeds)


def test_training_is_measured_on_one_and_on_all_threads(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    one, two = threads.training_rows(made_task(), own_tgn, {"model": "TGN"}, Options(quick=True))
    assert [one.params["threads"], two.params["threads"], two.baseline] == [1, 2, one.value]


def test_each_staleness_is_compared_with_none_on_the_same_batches(monkeypatch):
    for name, value in {"BATCH": 10, "X_DIM": 3, "NEIGHBORS": 2}.items():
        monkeypatch.setattr(reuse, name, value)
    events = made_events(240, x_dim=0)
    rows = list(reuse.speed_rows(events, (0, 1, 4), {"stream": "wikipedia"}))
    speeds = [row for row in rows if row.unit]
    assert [row.params["staleness"] for row in speeds] == [1, 4]
    assert all(row.value > 0 and row.baseline > 0 for row in speeds)
    assert all(row.params["largest lag"] == row.params["staleness"] for row in speeds)
    assert speeds[1].params["rows of a batch"] < speeds[0].params["rows of a batch"]
    assert len({row.params["without reuse"] for row in speeds}) == 1
    assert len(rows) == 4
