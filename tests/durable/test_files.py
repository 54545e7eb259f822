"""Append-only files, and the lock of their directory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tgflow.durable import fs
from tgflow.durable.errors import Locked
from tgflow.durable.fs import AppendedFile
from tgflow.durable.lock import RunLock


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
    assert file.sync() == file.size == 8
    file.rewind(4)
    file.write(b"three\n")
    file.replace([b"three\n", b"four\n"])
    file.write(b"five\n")
    assert file.sync() == 16
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
from tgflow.durable.lock import RunLock
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
