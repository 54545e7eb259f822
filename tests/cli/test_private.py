"""Files of a run are private, its pipes can be stopped, and lost records are reported."""

import json
import os
import signal
import stat
import threading
import time

import pytest

from helpers.live_runs import SMALL
from tgflow.streams.files import reader


def modes(*paths):
    """Return the permissions of all files and folders, by path."""
    found = [each for path in paths for each in (path, *path.rglob("*"))]
    return {str(each): stat.S_IMODE(each.stat().st_mode) for each in found}


@pytest.fixture(autouse=True)
def umask():
    """Use the common umask, and check that it is restored."""
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022


@pytest.mark.parametrize(
    "served", [(), pytest.param(("--serve", 0), marks=pytest.mark.slow)], ids=["run", "served"]
)
def test_files_of_a_run_are_private(tgflow, events_csv, tmp_path, served):
    with events_csv.open("a") as file:
        file.write("no row\n")
    (tmp_path / "out").mkdir(mode=0o755)
    flags = [*SMALL, "--scores", "elsewhere/s.csv", *served]
    assert tgflow("run", events_csv, "-o", "out", "--limit", 200, *flags).code == 0
    assert tgflow("run", "-o", "out", "--resume", "--limit", 401, "--max-bad-ratio", 1).code == 0
    assert tgflow("predict", "out", "--src", 1, "--to", "p.csv").code == 0
    found = modes(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "p.csv")
    names = {path.rpartition("/")[2] for path in found}
    assert {"report.html", "dead-letters", "manifest.json", "s.csv", "metrics.jsonl"} <= names
    assert {path: mode for path, mode in found.items() if mode & 0o077} == {}


def test_shared_files_have_the_permissions_of_the_umask(tgflow, events_csv, tmp_path):
    flags = [*SMALL, "--limit", 100, "--set", "run.share_files=true"]
    assert tgflow("run", events_csv, "-o", "out", *flags).code == 0
    assert tgflow("predict", "out", "--src", 1, "--to", "p.csv").code == 0
    found = modes(tmp_path / "out", tmp_path / "p.csv")
    assert set(found.values()) == {0o755, 0o644}


@pytest.mark.parametrize("left", [0, 2])
def test_lost_records_are_reported(tgflow, events_csv, resume, left):
    assert tgflow("run", events_csv, "-o", "out", "--limit", 200, *SMALL).code == 0
    assert "metrics.jsonl" not in tgflow("info", "out", "--json").json["problems"]
    path = events_csv.parent / "out/metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:left]))
    if not left:
        path.unlink()
    text = f"records are gone of the {len(lines)} that were written"
    assert text in tgflow("info", "out", "--json").json["problems"]["metrics.jsonl"]
    ran = resume("--limit", 300)
    assert (ran.code, text in ran.err) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_wait_for_a_writer(tgflow, tmp_path, monkeypatch, caplog, number):
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.setattr(reader, "NOTICE_SECONDS", 0.0)

    def send():
        while "waiting for a writer" not in caplog.text:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    ran = tgflow("run", "pipe.csv", "-o", "out", *SMALL)
    thread.join()
    os.close(os.open(tmp_path / "pipe.csv", os.O_WRONLY))  # ends the reader's thread
    assert (ran.code, (tmp_path / "out").exists()) == (0, False)
    assert f"stopped by {number.name} before the stream began" in ran.err


def test_named_pipe_is_read_like_a_file(tgflow, events_csv, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    writer = threading.Thread(
        target=lambda: (tmp_path / "pipe.csv").write_bytes(events_csv.read_bytes())
    )
    writer.start()
    runs = [tgflow("run", path, *SMALL, "--json") for path in ("pipe.csv", events_csv)]
    writer.join()
    first, second = (json.loads(ran.out) for ran in runs)
    assert first["num_events"] == 400
    assert first["state_sha256"] == second["state_sha256"]
