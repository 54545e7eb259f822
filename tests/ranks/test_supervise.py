"""Ranks of one host: restarts, their limit and backoff, and signals."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers.effort import cases
from helpers.processes import is_there
from tgflow.ranks import supervise as module
from tgflow.ranks.supervise import backoff_seconds, supervise

RANK = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])

def note(name, text=""):
    with (folder / name).open("a") as file:
        file.write(f"{text}\\n")

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.005)

def starts_of(rank):
    return (folder / f"starts-{rank}").read_text().split()

starts = folder / f"starts-{rank}"
attempt = len(starts.read_text().split()) if starts.exists() else 0
note(f"starts-{rank}", os.environ["TGFLOW_MEETING"])
"""


@pytest.fixture
def pauses(monkeypatch):
    """Recorded pauses before each restart, which do not sleep."""
    found = []

    def wait(stop, seconds):
        found.append(seconds)
        return stop.asked != 0

    monkeypatch.setattr(module._Stop, "wait", wait)
    return found


@pytest.fixture
def run(tmp_path, pauses):
    """Supervise two ranks that run a script."""

    def go(script, nproc=2, **options):
        return supervise(lambda: command(script, tmp_path), nproc, **options)

    return go


@pytest.fixture
def little_grace(monkeypatch):
    """Ranks that outlive the others are killed soon."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.1)


def command(script, folder):
    return [sys.executable, "-S", "-c", RANK + script, str(folder)]


def starts(folder, rank=0):
    return len((folder / f"starts-{rank}").read_text().split())


def test_ranks_get_their_environment_and_a_private_rendezvous_directory(run, tmp_path):
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE"
    script = f"""
note(f"who-{{rank}}", " ".join(os.environ[name] for name in {names!r}.split()))
assert list(pathlib.Path(os.environ["TGFLOW_MEETING"]).iterdir()) == [] or rank
sys.exit(75 if attempt == 0 else 0)
"""
    assert run(script, nproc=3) == 0
    for rank in range(3):
        assert (tmp_path / f"who-{rank}").read_text().splitlines() == [f"{rank} {rank} 3 3"] * 2
    first, second = (tmp_path / "starts-0").read_text().split()
    assert first != second
    assert (tmp_path / "starts-2").read_text().split() == [first, second]
    assert not Path(first).exists()
    assert not Path(second).exists()


@pytest.mark.parametrize("code", cases([71, 74, 75, -9, -6, -11, -15], [75, -9]))
def test_retryable_exit_codes_restart_all_ranks(run, tmp_path, code):
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    assert run(f"if attempt == 0 and rank == 1: {end}\nsys.exit(75 if attempt == 0 else 0)") == 0
    assert [starts(tmp_path, rank) for rank in range(2)] == [2, 2]


@pytest.mark.parametrize("code", cases([1, 2, 65, 66, 70, 73, 76, 77], [70]))
def test_permanent_exit_codes_end_all_ranks_immediately(run, tmp_path, code):
    lines = []
    assert run(f"sys.exit({code} if rank == 1 else 75)", say=lines.append) == code
    assert starts(tmp_path) == 1
    assert lines == [f"rank 1 ended with {code}"]


def test_killed_rank_is_named_instead_of_its_peers(run):
    lines = []
    script = "if rank == 1: os.kill(os.getpid(), 9)\nsys.exit(75)"
    assert run(script, max_restarts=1, say=lines.append) == 128 + 9
    assert lines == [
        "rank 1 was killed by SIGKILL; all ranks restart in 1 s (1 of 1)",
        "rank 1 was killed by SIGKILL; 1 restarts achieved nothing",
    ]


def test_restart_backoff_doubles_and_restarts_are_limited(run, pauses, tmp_path):
    assert run("sys.exit(74)", max_restarts=3) == 74
    assert pauses == [1, 2, 4]
    assert starts(tmp_path) == 4
    assert [backoff_seconds(n) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.usefixtures("little_grace")
def test_hanging_rank_is_killed_and_all_restart(run, tmp_path):
    script = """
while not (folder / "starts-1").exists() or len(starts_of(1)) <= attempt:
    time.sleep(0.005)
time.sleep(60 * (rank == 1 and attempt == 0))
sys.exit(0 if attempt else 75)
"""
    assert run(script) == 0
    assert starts(tmp_path, rank=1) == 2


def when_there_are(names, folder, do):
    """Call `do` in a thread once all these files exist."""

    def watch():
        while not all((folder / name).exists() for name in names):
            time.sleep(0.005)
        do()

    threading.Thread(target=watch, daemon=True).start()


def terminate_this():
    os.kill(os.getpid(), signal.SIGTERM)


def ready(handler):
    """A script that writes a file once it handles SIGTERM."""
    return f"signal.signal(signal.SIGTERM, lambda *_: {handler}); note(f'ready-{{rank}}')\n"


BOTH = ["ready-0", "ready-1"]


def test_sigterm_is_forwarded_to_rank_0_which_ends_all(run, tmp_path):
    script = ready("note(f'stop-{rank}')") + "wait_for('stop-0')"
    when_there_are(BOTH, tmp_path, terminate_this)
    when_there_are(BOTH, tmp_path, terminate_this)
    assert run(script) == 0
    assert starts(tmp_path) == 1
    assert not (tmp_path / "stop-1").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_all_ranks_without_checkpoints_and_sets_the_exit_code(run, tmp_path, number):
    when_there_are(BOTH, tmp_path, lambda: os.kill(os.getpid(), number))
    lines = []
    script = "note(f'ready-{rank}'); time.sleep(60)"
    assert run(script, keeps=False, say=lines.append) == 128 + number
    name = signal.Signals(number).name
    assert lines == [f"all ranks have ended by {name}, and nothing is kept"]
    assert starts(tmp_path) == 1


def test_second_sigterm_kills_all_ranks(run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOGETHER_SECONDS", 0.0)
    script = ready("note('asked')") + "time.sleep(60)"
    when_there_are(BOTH, tmp_path, terminate_this)
    when_there_are(["asked"], tmp_path, terminate_this)
    assert run(script) == 128 + signal.SIGTERM


def test_ranks_end_with_their_supervisor_which_needs_no_torch(tmp_path):
    script = ready("note(f'stop-{rank}')") + "note(f'pid-{rank}', os.getpid()); time.sleep(60)"
    code = (
        "import sys; from tgflow.ranks.supervise import supervise; "
        "assert 'torch' not in sys.modules; supervise(lambda: sys.argv[1:], 2)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *command(script, tmp_path)])
    wait_for(tmp_path, ["pid-0", "pid-1"])
    pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(2)]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not list(tmp_path.glob("stop-*")), "they are killed, however long a step takes"


def wait_for(folder, names):
    deadline = time.monotonic() + 30
    while not all((folder / name).exists() and (folder / name).read_text() for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.01)
