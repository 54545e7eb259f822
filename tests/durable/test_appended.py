"""A file that grows at its end: what it holds, and when its name is on the disk."""

from __future__ import annotations

import pytest

from tgflow.durable import fs
from tgflow.durable.fs import AppendedFile


@pytest.fixture
def synced(monkeypatch):
    """Return the directories whose names were put on the disk."""
    found = []
    monkeypatch.setattr(fs.RealFs, "sync_directory", lambda self, path: found.append(path))
    return found


def test_it_grows_is_cut_back_and_replaced(tmp_path):
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


def test_a_new_name_is_on_the_disk_once_it_is_synced(tmp_path, synced):
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


def test_what_cannot_be_replaced_stays(tmp_path):
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
