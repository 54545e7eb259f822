"""The command line on an emulated GPU: placement, resume elsewhere, out of memory."""

import json
from pathlib import Path

import pytest
import torch

from helpers.devices import needs_apart, place_of
from helpers.effort import slow
from helpers.live_runs import write_features
from tgflow.cli import inputs as assemble
from tgflow.cli import rank_setup as ranks
from tgflow.cli import train_seeds
from tgflow.cuda.device import device_of
from tgflow.run import restore

pytestmark = needs_apart
SIZE, BATCH = 40, 10
SMALL = ("--dim", 4, "--neighbors", 2, "--batch-size", BATCH, "--threads", 1)
FEW = ("--mrr-negatives", 2, "--replay-ratio", 0, "--set", "run.capture=false")
ON_GPU = ("--device", "cuda")


@pytest.fixture
def gpu(monkeypatch):
    """Make `--device cuda` the emulated device, and return it."""
    place = place_of("apart")

    def use_device(name, *settings):
        return torch.device("cpu") if name == "cpu" else place

    for command in (assemble, ranks, train_seeds):
        monkeypatch.setattr(command, "use_device", use_device)
    monkeypatch.setattr(
        restore, "describe_device", lambda device: {} if device.type == "cpu" else {"gpu": "H200"}
    )
    with torch.autograd.set_multithreading_enabled(False):  # the device has no thread for it
        yield device_of(place)


@pytest.fixture
def run(tgflow, tmp_path):
    """Run over events with two features into `out`, with more flags."""
    made = write_features(tmp_path / "made.csv", SIZE)
    asked = ("run", "-s", made, "--features", "f*", "-o", "out", *SMALL, *FEW)
    return lambda *flags: tgflow(*asked, *flags)


def table_of(out="out"):
    return json.loads((Path(out) / "metrics.json").read_text())["tables"]["edge_x"]


@pytest.mark.parametrize(
    ("budget", "where"), [((), "device"), slow(("--set", "tables.edge_budget=100"), "uva")]
)
def test_features_are_placed_where_memory_is_free(gpu, run, budget, where):
    gpu.device_bytes = 1 << 40
    ran = run(*ON_GPU, *budget)
    assert ran.code == 0, ran.err
    assert f"edge features: {SIZE} rows (320 B) in {where} memory" in ran.out
    assert table_of()["placement"] == where


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ON_GPU, ("--device", "cpu")),
        slow((), ON_GPU),
        slow(("--edge-table", "disk"), (*ON_GPU, "--edge-table", "auto")),
    ],
)
def test_run_resumes_on_another_device_with_its_features(gpu, run, resume, first, then):
    assert run("--limit", 20, *first).code == 0
    refused = resume("--limit", SIZE, *then, "--set", "checkpoint.strict_resume=true")
    assert (refused.code, "H200" in refused.err) == (2, True), refused.err
    ran = resume("--limit", SIZE, *then, "--set", "checkpoint.strict_resume=false")
    assert ran.code == 0, ran.err
    table = table_of()
    assert table["rows"] == SIZE
    stays = "--edge-table" in first
    expected = "disk" if stays else "device" if then == ON_GPU else "host"
    assert table["placement"] == expected
