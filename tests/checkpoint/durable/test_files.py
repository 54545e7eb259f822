"""Append-only files, and the lock of their directory."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tgflow.checkpoint.durable import fs
from tgflow.checkpoint.durable.errors import Fenced, Locked
from tgflow.checkpoint.durable.fs import AppendedFile
from tgflow.checkpoint.durable.lock import RunLock


@pytest.fixture
def synced(monkeypatch):
    """Return the directories that were synced."""
    found = []
    monkeypatch.setattr(fs.RealFs, "sync_directory", lambda self, path: found.append(path))
    return found


def test_appended_file_grows_is_rewound_and_replaced(tmp_path):
    file = AppendedFile(tmp_path / "rows")
    assert file.size == 0
    file.write(b"one\n")
    file.write(b"two\n")
    file.sync()
    assert file.size == 8
    file.rewind(4)
    file.write(b"three\n")
    file.replace([b"three\n", b"four\n"])
    file.write(b"five\n")
    file.sync()
    assert file.size == 16
    file.close()
    assert (tmp_path / "rows").read_bytes() == b"three\nfour\nfive\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_new_file_name_is_durable_after_a_sync(tmp_path, synced):
    file = AppendedFile(tmp_path / "rows")
    file.write(b"one\n")
    assert synced == []
    file.sync()
    file.write(b"two\n")
    file.sync()
    assert synced == [tmp_path]
    file.replace([b"two\n"])
    file.sync()
    assert synced == [tmp_path] * 2
    file.close()


def test_failed_replacement_keeps_the_old_file(tmp_path):
    def broken():
        yield b"half"
        raise OSError("no room")

    file = AppendedFile(tmp_path / "rows")
    file.write(b"one\n")
    with pytest.raises(OSError, match="no room"):
        file.replace(broken())
    file.write(b"two\n")
    file.close()
    assert (tmp_path / "rows").read_bytes() == b"one\ntwo\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows"], "half a file takes no room"


# The lock of a run directory

HOLD = """
import sys
from pathlib import Path
from tgflow.checkpoint.durable.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_second_process_gets_the_owner_of_the_lock(tmp_path):
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        note = path.read_bytes()
        with pytest.raises(Locked, match=rf"is in use by process {holder.pid} on .*, since 2"):
            RunLock(path)
        assert path.read_bytes() == note
        holder.kill()  # the lock ends with the process, however it ends
        holder.wait()
        with RunLock(path):
            pass
        with RunLock(path), pytest.raises(Locked):
            RunLock(path)


def left_by(path, **changes):
    """Write the note of a holder that has not released its lock."""
    note = {"pid": 1, "host": "h1", "machine": "another", "since": "2026", "token": 4} | changes
    path.write_text(json.dumps(note))


def renewing(path, seconds):
    """Renew the lease in `path` from a thread for some time."""

    def renew():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            os.utime(path)
            time.sleep(0.02)

    thread = threading.Thread(target=renew)
    thread.start()
    return thread


def test_lock_left_by_another_machine_is_taken_over_after_its_lease_with_a_larger_token(tmp_path):
    path, said = tmp_path / ".lock", []
    left_by(path)
    start = time.monotonic()
    with RunLock(path, lease=0.5, say=said.append) as lock:
        assert time.monotonic() - start >= 0.5
        assert lock.token == 5
        assert said == [f"{tmp_path} was in use by process 1 on h1, since 2026; waiting 0.5 s"]
    with RunLock(path) as lock:
        assert lock.token == 5, "a released lock is taken at once"


def test_lock_renewed_by_another_machine_is_refused(tmp_path):
    path = tmp_path / ".lock"
    left_by(path)
    thread = renewing(path, 1.0)
    with pytest.raises(Locked, match="is in use by process 1 on h1"):
        RunLock(path, lease=1.0)
    thread.join()


def test_holder_renews_its_lease_and_notices_that_it_was_fenced(tmp_path):
    path = tmp_path / ".lock"
    lock = RunLock(path, lease=0.5)
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 30
    while path.stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.check(now=True)
    left_by(path, token=1)
    with pytest.raises(Fenced, match="was taken over by process 1 on h1, since 2026"):
        lock.check(now=True)
    note = path.read_text()
    lock.release()
    assert path.read_text() == note, "the new holder keeps it"


def test_two_machines_that_waited_for_one_lease_do_not_both_get_it(tmp_path):
    path = tmp_path / ".lock"
    left_by(path)
    lock = RunLock(path, lease=0.2)
    left_by(path, machine="a third", token=5)
    with pytest.raises(Fenced):
        lock.check(now=True)
    lock.release()
