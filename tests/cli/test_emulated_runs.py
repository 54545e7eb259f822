"""The command line on a GPU, emulated: where features are, resuming elsewhere, memory that ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from helpers.devices import needs_apart, place_of
from helpers.effort import slow
from helpers.emulator import tensors
from helpers.live_runs import figures, write_features
from helpers.rank_runs import codes, run_ranks
from tgflow.cli import assemble, main, offline, ranks
from tgflow.cli.errors import MEMORY
from tgflow.cuda.device import device_of
from tgflow.graph import TemporalGraph
from tgflow.models.tgn import TGN
from tgflow.plan.plan import Plan
from tgflow.runtime import restore
from tgflow.train import results, step

pytestmark = needs_apart
SIZE, BATCH = 40, 10
SMALL = ("--dim", 4, "--neighbors", 2, "--batch-size", BATCH, "--threads", 1)
FEW = ("--mrr-negatives", 2, "--replay-ratio", 0, "--no-capture")
ON_GPU = ("--device", "cuda")


def emulate(replace):
    """Let `--device cuda` be the emulated device, by `replace(owner, name, value)`; return it."""
    place, made = place_of("apart"), results._host_memory

    def use_device(config):
        return torch.device("cpu") if config.run.device == "cpu" else place

    for command in (assemble, offline, ranks):
        replace(command, "use_device", use_device)
    replace(
        restore, "describe_device", lambda device: {} if device.type == "cpu" else {"gpu": "H200"}
    )
    replace(results, "_host_memory", lambda *given: tensors.pin(made(*given)))
    return place


@pytest.fixture
def gpu(monkeypatch):
    """Let `--device cuda` be the emulated device, and return it."""
    place = emulate(monkeypatch.setattr)
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
    ("budget", "where"), [((), "device"), slow(("--edge-budget", "100"), "uva")]
)
def test_features_are_where_there_is_room(gpu, run, budget, where):
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
def test_a_run_resumes_elsewhere_with_its_features(gpu, run, resume, first, then):
    assert run("--limit", 20, *first).code == 0
    refused = resume("--limit", SIZE, *then, "--strict-resume")
    assert (refused.code, "H200" in refused.err) == (2, True), refused.err
    ran = resume("--limit", SIZE, *then, "--no-strict-resume")
    assert ran.code == 0, ran.err
    table = table_of()
    assert table["rows"] == SIZE
    stays = "--edge-table" in first
    expected = "disk" if stays else "device" if then == ON_GPU else "host"
    assert table["placement"] == expected


def ends_memory(monkeypatch, owner, name, at, error=None):
    """Let a call of a function find no memory: the one with number `at`, from 0."""
    plain, calls = getattr(owner, name), []

    def call(*arguments, **options):
        calls.append(name)
        if len(calls) == at + 1:
            raise error or torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."
            )
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


NO_ROOM = MemoryError("asked cuda:0 for 9 bytes, it has 8 free; set a smaller device_budget")


@pytest.mark.parametrize(
    ("owner", "name", "error", "kept"),
    [
        (step.TrainStep, "backward", None, 20),
        slow(step.TrainStep, "predict", None, 20),
        slow(Plan, "draw", None, 10),  # of which a micro-batch has two
        slow(TemporalGraph, "append", NO_ROOM, 20),
        slow(TGN, "commit", None, None),
    ],
)
def test_memory_that_ends_loses_nothing(gpu, run, resume, monkeypatch, owner, name, error, kept):
    with monkeypatch.context() as patched:
        ends_memory(patched, owner, name, 2, error)
        ran = run(*ON_GPU)
    assert ran.code == MEMORY
    assert (
        "smaller --device-budget" if error else "--device-budget, --edge-budget or --batch"
    ) in ran.err
    checkpoints = [path.name for path in Path("out/checkpoints").glob("ckpt-*")]
    if kept is None:
        assert not checkpoints
        assert "could not be saved: the latest micro-batch has changed the model in" in ran.err
        assert "there is no checkpoint yet" in ran.err
    else:
        assert [int(each.removeprefix("ckpt-")) for each in checkpoints] == [kept]
    assert resume().code == 0
    (digest, *_), _ = figures(Path("out")), shutil.rmtree("out")
    assert run(*ON_GPU).code == 0
    assert digest == figures(Path("out"))[0]


def share_the_device(rank):
    emulate(setattr)
    torch.autograd.set_multithreading_enabled(False)


IN_MEMORY = ("--edge-table", "host", "--slices", 2)


@pytest.mark.slow
def test_ranks_that_share_a_device_end_with_the_bits_of_one_process(gpu, tmp_path):
    made = write_features(tmp_path / "made.csv", SIZE)
    asked = ("run", "-s", made, "--features", "f*", *ON_GPU, *SMALL, *FEW, *IN_MEMORY)
    one, two = ([*map(str, asked), "-o", str(tmp_path / name)] for name in ("one", "two"))
    assert main(one) == 0
    ends = run_ranks(tmp_path, 2, two, share_the_device)
    assert codes(ends) == [0, 0], ends
    (digest, _, records), (other, _, others) = (figures(tmp_path / name) for name in ("one", "two"))
    assert records == others
    assert digest == other
