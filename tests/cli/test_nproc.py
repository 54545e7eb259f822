"""`--nproc` and torchrun start a command on several ranks and restart them together."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from helpers.campaign import rank_pids
from helpers.live_runs import SMALL, same_run, write_events
from helpers.processes import environment
from tgflow.cli import main
from tgflow.cli.errors import USAGE
from tgflow.run import gpu
from tgflow.run.config import load_config

EVENTS = 1_200
PATIENCE = 500
"""Seconds for torchrun and all its attempts; each imports torch three times."""


def test_nproc_under_torchrun_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["run", "x.csv", "--nproc", "2"]) == USAGE
    assert "nproc" in capsys.readouterr().err


def program(*arguments):
    command = [sys.executable, "-m", "tgflow", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until_learned(runner, run, num_events):
    """Wait until a run has a record of so many events."""
    path = run / "metrics.jsonl"
    while runner.poll() is None:
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[-1]).get("stop", EVENTS) >= num_events:
            return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "train"])
def test_signal_to_the_launcher_stops_all_ranks_gracefully(tmp_path, command):
    events, out = write_events(tmp_path / "events.csv", EVENTS), tmp_path / "out"
    more = {"run": ("--speed", 60 * 60), "train": ("--epochs", 10_000, "--patience", 10_000)}
    options = ("--stream", events, *SMALL, *more[command])
    runner = program(command, *options, "--out", out, "--nproc", 2)
    wait_until_learned(runner, out, EVENTS // 3)
    runner.send_signal(signal.SIGTERM)
    shown, said = runner.communicate(timeout=60)
    if command == "run":
        assert runner.returncode == 0, said
        assert "resume with: tgflow run --resume" in shown
        return
    assert runner.returncode == 128 + signal.SIGTERM, said
    assert said.endswith("tgflow: all ranks have ended by SIGTERM, and nothing is kept\n")
    assert "lost another one" not in said
    assert not (out / "checkpoint").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_ranks_sharing_a_gpu_match_one_process(tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("run", "--stream", events, *SMALL, "--device", "cuda", "--slices", 2)
    for world in (1, 2):
        runner = program(*options, "--out", tmp_path / str(world), "--nproc", world)
        _, said = runner.communicate(timeout=300)
        assert runner.returncode == 0, said
    same_run(tmp_path / "1", tmp_path / "2")


def torchrun(folder, *arguments):
    """Start two ranks of a command; stderr goes to a file for each attempt and rank."""
    options = ["--standalone", "--nproc-per-node", 2, "--max-restarts", 2]
    options += ["--log-dir", folder / "said", "--redirects", 3, "-m", "tgflow", *arguments]
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, options)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment() | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_run_under_torchrun_matches_one_process(tmp_path, rank):
    events = write_events(tmp_path / "events.csv", EVENTS // 2)
    one, two = tmp_path / "one", tmp_path / "two"
    options = [str(each) for each in ("--stream", events, *SMALL, "--checkpoint-batches", 3)]
    assert main(["run", *options, "--slices", "2", "--out", str(one)]) == 0
    slowly = () if rank is None else ("--speed", 60 * 60)
    runner = torchrun(tmp_path, "run", *options, "--resume", "--out", two, *slowly)
    if rank is not None:
        wait_until_learned(runner, two, EVENTS // 6)
        os.kill(rank_pids(runner.pid)[rank], signal.SIGKILL)
    said, _ = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 0, said
    same_run(one, two)
    attempts = {path.name for path in (tmp_path / "said").glob("*/attempt_*")}
    assert len(attempts) == (1 if rank is None else 2)


def config(**flags):
    return load_config(None, {"stream.path": "events.csv", **flags})


@pytest.mark.parametrize(
    ("name", "local_rank", "expected"),
    [
        ("cuda", 0, "cuda:0"),
        ("cuda", 1, "cuda:1"),
        ("cuda", 2, "cuda:0"),  # shared, and over gloo
        ("cuda:1", 0, "cuda:1"),
        ("cuda", None, "cuda"),
        ("cpu", 1, "cpu"),
    ],
)
def test_rank_uses_the_device_of_its_local_rank(monkeypatch, name, local_rank, expected):
    used = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(gpu, "require_device", lambda device: device)
    monkeypatch.setattr(gpu, "require_cupy", lambda device: None)
    world = {} if local_rank is None else {"RANK": 4 + local_rank, "WORLD_SIZE": 8}
    world |= {} if local_rank is None else {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 4}
    for key, value in (world | {"TGFLOW_MEETING": "here"}).items():
        monkeypatch.setenv(key, str(value))
    found = gpu.use_device(name, "fp32")
    assert found == torch.device(expected)
    assert used == ([] if name == "cpu" else [found])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("command", ["run", "train"])
def test_gpu_run_prints_the_name_of_its_gpu(command, tgflow, events_csv):
    ran = tgflow(command, "--stream", events_csv, "--out", "out", "--device", "cuda", "--json")
    assert ran.json["machine"]["gpu"]
    assert ran.json["gpu_peak_bytes"] > 0
