"""Real file systems that are full, or that may only be read."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
import torch

from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.durable.errors import DiskFull
from tgflow.durable.log import DurableLog


@contextmanager
def mounted(path, options):
    """A small file system in memory; skips the test where that is not allowed."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tgflow", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def of(step, num_bytes):
    return Checkpoint({"model": {"w": torch.full((num_bytes,), step, dtype=torch.uint8)}})


def submit_and_wait(writer, step, checkpoint):
    writer.submit(step, checkpoint)
    writer.wait()


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_disk_full_during_a_checkpoint_leaves_the_old_ones(tmp_path, monkeypatch, seen_before):
    if not seen_before:  # as when something else takes the room meanwhile
        free = os.statvfs_result((4096, 4096, 0, 0, 1 << 30, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _: free)
    with mounted(tmp_path / "disk", "size=3m") as disk:
        store = CheckpointStore(disk / "checkpoints")
        store.save(1, of(1, 1 << 20))
        before = os.statvfs(disk)
        writer = CheckpointWriter(store)
        for step in (2, 3):
            with pytest.warns(RuntimeWarning, match="room"):  # by the writer's own thread
                submit_and_wait(writer, step, of(step, 3 << 20))
        writer.submit(4, of(4, 3 << 20))
        with pytest.raises(DiskFull):
            writer.wait()
        assert os.listdir(store.directory) == ["ckpt-000000000001"]
        assert os.statvfs(disk).f_bavail == before.f_bavail
        assert CheckpointStore(store.directory).newest()[0] == 1
        store.save(5, of(5, 1 << 18))
        assert store.newest()[0] == 5


def rows(i):
    return pa.record_batch({"seq": np.arange(i * 10_000, (i + 1) * 10_000)})


def found(log):
    return [(batch["seq"][0].as_py() // 10_000, footer["n"]) for batch, footer, _ in log.read()]


@pytest.mark.parametrize("sync_ms", [0, 1e9])
def test_a_disk_full_during_an_append_leaves_what_was_there(tmp_path, sync_ms):
    with mounted(tmp_path / "disk", "size=3m") as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(1 << 20))
        log = DurableLog(disk / "log", segment_bytes=1 << 19, sync_ms=sync_ms)

        def fill():
            for n in range(1000):
                log.append(rows(n), {"n": n})

        with pytest.raises(DiskFull, match="no room for the log"):
            fill()
        i = len(found(log))
        assert i > 10
        for _ in range(3):
            with pytest.raises(DiskFull):
                log.append(rows(i), {"n": i})
            assert found(log) == [(n, n) for n in range(i)]
        filler.unlink()
        for n in range(i, i + 5):
            log.append(rows(n), {"n": n})
        log.close()
        with DurableLog(disk / "log") as log:
            assert found(log) == [(n, n) for n in range(i + 5)]
