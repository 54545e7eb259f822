"""`--nproc`: a command starts itself as ranks, and all of them again where they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.live_runs import SMALL, same_run, write_events
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


def config(out=None):
    return load_config(flags={"stream.path": "a/events.csv", "run.out": out})


def test_a_restart_resumes_the_run_in_the_directory_that_was_chosen(started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert nproc.run_ranks(config(), ["run", "x"], 3, 7, resume=False) == 0
    first, second, third, (ranks, restarts, newest) = started
    program = [sys.executable, "-m", "tgflow", "run", "x", "--out", "runs/events-tgn"]
    assert first == program
    assert second == third == [*program, "--resume"]
    assert (ranks, restarts, newest) == (3, 7, None)


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
    command = [sys.executable, "-m", "tgflow", "run", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rank_pid(parent, rank):
    """Return the process of a rank, once it is there."""
    while True:
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(stat[1]) == parent and f"RANK={rank}".encode() in environ:
                return pid
        time.sleep(0.05)


def learned(run):
    """Return how many events a run has a record of."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["stop"] if lines else 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_survives_the_end_of_any_rank_with_the_bits_of_one_process(tmp_path, rank):
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("--stream", events, *SMALL, "--checkpoint-batches", 3)
    one, two = tmp_path / "one", tmp_path / "two"
    assert program(*options, "--out", one, "--nproc", 1, "--slices", 2).wait() == 0
    runner = program(*options, "--out", two, "--nproc", 2, "--speed", 60 * 60)
    while learned(two) < EVENTS // 3:
        time.sleep(0.01)
    os.kill(rank_pid(runner.pid, rank), signal.SIGKILL)
    _, said = runner.communicate()
    assert runner.returncode == 0, said
    assert f"rank {rank} was killed by SIGKILL; all ranks restart in 1 s (1 of 10)" in said
    same_run(one, two)


@pytest.mark.slow
def test_a_signal_to_the_program_stops_all_ranks_in_order(tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    two = tmp_path / "two"
    runner = program("--stream", events, *SMALL, "--out", two, "--nproc", 2, "--speed", 60 * 60)
    while learned(two) < EVENTS // 3:
        time.sleep(0.01)
    runner.send_signal(signal.SIGTERM)
    out, said = runner.communicate(timeout=60)
    assert runner.returncode == 0, said
    assert "resume with: tgflow run --resume" in out
