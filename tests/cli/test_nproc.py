"""`--nproc`: a command starts itself as ranks, and all of them again where they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from helpers.live_runs import SHARDED, SMALL, same_run, write_events, write_features
from helpers.rank_campaign import rank_pids
from tgflow.cli import main, nproc
from tgflow.cli.errors import IO, USAGE
from tgflow.config import load_config


@pytest.fixture
def started(monkeypatch):
    """The commands of each start; every one but the last ends with 75."""
    found = []

    def supervise(command, ranks, *, max_restarts, progress, say):
        found.extend(command() for _ in range(3))
        found.append((ranks, max_restarts, progress()))
        return 0

    monkeypatch.setattr(nproc, "supervise", supervise)
    return found


def config(out=None, stream="a/events.csv"):
    return load_config(flags={"stream.path": stream, "run.out": out})


def test_a_restart_resumes_the_run_in_the_directory_that_was_chosen(started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert nproc.run_ranks(config(), ["run", "x"], 3, 7, resume=False) == 0
    first, second, third, (ranks, restarts, newest) = started
    program = [sys.executable, "-m", "tgflow", "run", "x", "--out", "runs/events-tgn"]
    assert first == program
    assert second == third == [*program, "--resume"]
    assert (ranks, restarts, newest) == (3, 7, None)


def test_what_came_by_stdin_cannot_be_read_again(started, tmp_path):
    nproc.run_ranks(config(str(tmp_path / "run"), stream="-"), ["run"], 2, 7, resume=False)
    assert started[-1] == (2, 0, None)


@pytest.mark.parametrize(("ranks", "warns"), [(3, False), (4, True)])
def test_more_ranks_than_cores_are_warned_of(started, monkeypatch, tmp_path, capsys, ranks, warns):
    monkeypatch.setattr(nproc, "num_cores", lambda: 3)
    nproc.run_ranks(config(str(tmp_path / "run")), ["run"], ranks, 1, resume=False)
    assert ("--nproc 4: there are 3 cores" in capsys.readouterr().err) == warns


def test_training_starts_once_and_keeps_nothing(monkeypatch):
    given = {}
    monkeypatch.setattr(nproc, "supervise", lambda command, ranks, **how: given.update(how) or 143)
    assert nproc.train_ranks(["train", "x"], 2) == 143
    assert (given["keeps"], given["max_restarts"]) == (False, 0)


def test_the_newest_checkpoint_is_the_progress(started, tmp_path):
    run = tmp_path / "run"
    for name in ("ckpt-000000000100", "ckpt-000000000200", "corrupt-1"):
        (run / "checkpoints" / name).mkdir(parents=True)
    nproc.run_ranks(config(str(run)), ["run", "--resume"], 2, 1, resume=True)
    assert started[0][-2:] == ["--out", str(run)]
    assert started[-1] == (2, 1, "ckpt-000000000200")


def test_files_that_are_there_are_refused_before_anything_starts(tmp_path, capsys, monkeypatch):
    (tmp_path / "kept.txt").touch()
    monkeypatch.setattr(nproc, "supervise", None)
    argv = ["run", "--stream", "x.csv", "--out", str(tmp_path), "--nproc", "2"]
    assert main(argv) == IO
    assert "holds files already" in capsys.readouterr().err


@pytest.mark.parametrize(("ranks", "environ"), [(0, {}), (65, {}), (2, {"WORLD_SIZE": "2"})])
def test_ranks_that_cannot_be_are_refused(ranks, environ, tmp_path, capsys, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    argv = ["run", "--stream", "x.csv", "--out", str(tmp_path / "run"), "--nproc", str(ranks)]
    assert main(argv) == USAGE
    said = capsys.readouterr().err
    assert "nproc" in said if environ else f"got {ranks}" in said


EVENTS = 1_200


def program(*arguments):
    command = [sys.executable, "-m", "tgflow", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def learned(run):
    """Return how many events a run has a record of."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["stop"] if lines else 0


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "sharded"), [(0, ()), (1, ()), (1, SHARDED)])
def test_a_run_survives_the_end_of_any_rank_with_the_bits_of_one_process(tmp_path, rank, sharded):
    events = write_features(tmp_path / "features.csv", EVENTS, nodes=90)
    options = ("--stream", events, "--features", "f*", *SMALL, "--checkpoint-batches", 3)
    one, two = tmp_path / "one", tmp_path / "two"
    assert program("run", *options, "--out", one, "--nproc", 1, "--slices", 2).wait() == 0
    runner = program("run", *options, "--out", two, "--nproc", 2, "--speed", 60 * 60, *sharded)
    while learned(two) < EVENTS // 3:
        time.sleep(0.01)
    os.kill(rank_pids(runner.pid)[rank], signal.SIGKILL)
    _, said = runner.communicate()
    assert runner.returncode == 0, said
    assert f"rank {rank} was killed by SIGKILL; all ranks restart in 1 s (1 of 10)" in said
    same_run(one, two)


@pytest.mark.slow
def test_a_signal_to_the_program_stops_all_ranks_in_order(tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    two = tmp_path / "two"
    options = ("--stream", events, *SMALL, "--speed", 60 * 60)
    runner = program("run", *options, "--out", two, "--nproc", 2)
    while learned(two) < EVENTS // 3:
        time.sleep(0.01)
    runner.send_signal(signal.SIGTERM)
    out, said = runner.communicate(timeout=60)
    assert runner.returncode == 0, said
    assert "resume with: tgflow run --resume" in out


@pytest.mark.slow
def test_a_signal_ends_training_by_ranks_as_that_of_one_process(tmp_path):
    events, out = write_events(tmp_path / "events.csv", EVENTS), tmp_path / "out"
    options = ("--data", events, *SMALL, "--epochs", 10_000, "--patience", 10_000)
    runner = program("train", *options, "--out", out, "--nproc", 2)
    while runner.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    runner.send_signal(signal.SIGTERM)
    _, said = runner.communicate(timeout=60)
    assert runner.returncode == 128 + signal.SIGTERM, said
    assert said.endswith("tgflow: all ranks have ended by SIGTERM, and nothing is kept\n")
    assert "lost another one" not in said
    assert not (out / "checkpoint").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_ranks_that_share_a_gpu_end_with_the_bits_of_one_process(tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("run", "--stream", events, *SMALL, "--device", "cuda", "--slices", 2)
    for world in (1, 2):
        runner = program(*options, "--out", tmp_path / str(world), "--nproc", world)
        _, said = runner.communicate(timeout=300)
        assert runner.returncode == 0, said
    same_run(tmp_path / "1", tmp_path / "2")
