"""Disk tables return appended rows after crashes, damage and disk faults."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch

import tgflow as tg
from helpers.forged import flip_bit
from tgflow import _core
from tgflow.graph.tables import DamagedFile, FeatureTable
from tgflow.graph.tables.disk import DiskRows


def some_rows(size: int, dim: int = 3) -> torch.Tensor:
    return torch.randn(size, dim, generator=torch.Generator().manual_seed(size))


def on_disk(path: Path | None, dim: int = 3, **options) -> FeatureTable:
    return FeatureTable(dim, placement="disk", path=path, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows"


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    for op in _core.FileOp.__members__.values():
        _core.inject_fault(op, 0, 0, 0)


def test_table_is_reopened_from_its_file(path):
    rows = some_rows(100)
    table = on_disk(path)
    table.append(rows[:60])
    table.close()
    table = on_disk(str(path))
    assert len(table) == 60
    assert table.append(rows[60:]) == 60
    assert torch.equal(table[torch.arange(100)], rows)
    with pytest.raises(OSError, match="is open elsewhere"):
        on_disk(path)
    table.close()
    with pytest.raises(ValueError, match=r"holds rows of float32 \[3\], not of float32 \[4\]"):
        on_disk(path, 4)
    with pytest.raises(ValueError, match=r"holds rows of float32 \[3\], not of int32 \[3\]"):
        FeatureTable(3, torch.int32, "disk", path=path)
    assert torch.equal(FeatureTable(3, path=path)[torch.arange(100)], rows)


@pytest.mark.parametrize("cut", [1, 7, 15, 16, 17, 160])
def test_torn_row_is_dropped_and_rewritten(path, cut):
    rows = some_rows(60)
    table = on_disk(path)
    table.append(rows[:40])
    table.sync()
    table.append(rows[40:50])
    del table
    os.truncate(path, path.stat().st_size - cut)
    table = on_disk(path)
    assert len(table) == 50 - -(-cut // 16)
    table.append(rows[len(table) :])
    assert torch.equal(table[torch.arange(60)], rows)


def test_file_is_freed_up_to_the_rows_that_checkpoints_need(path):
    rows, table = some_rows(50_000, 40), on_disk(path, 40)
    table.append(rows[:40_000])
    table.sync()
    whole = path.stat().st_blocks
    table.forget(30_000)
    assert path.stat().st_blocks == whole, "a checkpoint may refer to them"
    table.free_file(35_000)
    assert path.stat().st_blocks == whole, "not beyond what was forgotten"
    table.free_file(20_000)
    assert path.stat().st_blocks < 0.6 * whole
    table.append(rows[40_000:])
    table.close()
    with closing(on_disk(path, 40)) as table:
        assert torch.equal(table.read(20_000, 50_000), rows[20_000:])
        with pytest.raises(DamagedFile):
            table.read(10_000, 10_001)
    with closing(on_disk(path.with_name("other"), 40)) as table:
        table.forget(20_000)
        assert table.append(rows[20_000:]) == 20_000
    with closing(on_disk(path.with_name("other"), 40)) as table:
        assert len(table) == 50_000
        assert torch.equal(table.read(20_000, 50_000), rows[20_000:])
    with closing(on_disk(None, 40)) as table:
        table.append(rows)
        table.forget(49_000)
        assert torch.equal(table.read(48_999, 50_000)[1:], rows[49_000:])


def test_rows_can_be_read_ahead(path):
    rows = some_rows(5_000, 40)
    for table in (on_disk(path, 40), tg.tables.FeatureTable.from_tensor(rows)):
        if len(table) == 0:
            table.append(rows)
        asked = [torch.randint(-1, 5_000, (300,)) for _ in range(20)]
        readings = [table.start_gather(ids) for ids in asked]
        for ids, reading in zip(asked, readings, strict=True):
            assert torch.equal(reading.wait(), torch.cat([rows, torch.zeros(1, 40)])[ids])
            assert reading.is_done
        out = torch.empty(2, 40)
        assert table.start_gather(torch.tensor([3, 4]), out).wait() is out
        with pytest.raises(IndexError, match="id 5000 is not in a table of 5000 rows"):
            table.start_gather(torch.tensor([5_000]))
        with pytest.raises(ValueError, match="ids must be int64, got int32"):
            table.start_gather(torch.tensor([0], dtype=torch.int32))
        table.start_gather(asked[0])  # nobody waits
        table.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_failed_append_changes_nothing(path, error):
    rows = some_rows(40)
    table = on_disk(path)
    table.append(rows[:10])
    _core.inject_fault(_core.FileOp.write, 0, 1, -error)
    with pytest.raises(OSError, match=r"rows 10 to 39 were not added to .*which keeps") as caught:
        table.append(rows[10:])
    assert caught.value.errno == error
    assert len(table) == 10
    table.append(rows[10:])
    assert torch.equal(table.read(0, 40), rows)


def test_failed_sync_is_never_reported_as_success(path):
    table = on_disk(path)
    table.append(some_rows(10))
    table.sync()
    table.append(some_rows(5))
    _core.inject_fault(_core.FileOp.sync, 0, 1, -errno.EIO)
    with pytest.raises(OSError, match="could not be synced, and is sure to hold only its first 10"):
        table.sync()
    with pytest.raises(OSError, match="failed to sync before; open it again"):
        table.append(some_rows(5))
    with pytest.raises(OSError, match="failed to sync before"):
        table.close()
    assert len(on_disk(path)) == 15


def rows_on_disk(path: Path, reads: str = "auto", budget: int = 1 << 20) -> DiskRows:
    return DiskRows(688, "bytes", path, budget, reads)


def rows_from(first: int, size: int) -> torch.Tensor:
    values = torch.arange(first * 688, (first + size) * 688)
    return (values * 31 >> 3).to(torch.uint8).view(size, 688)


def read_rows(rows: DiskRows, ids: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(ids), 688), 7, dtype=torch.uint8)
    rows.gather(ids, out, rows.num_rows)
    return out


@pytest.mark.parametrize("reads", ["io_uring", "pread", "page cache"])
def test_reads_that_fail_raise_and_those_that_fall_short_go_on(path, reads):
    expected, ids = rows_from(0, 2_000), torch.arange(500) ** 2 * 7919 % 2_000
    rows = rows_on_disk(path, reads)
    rows.append(expected, 2_000)
    _core.inject_fault(_core.FileOp.read, 3, 1, -errno.EIO)
    with pytest.raises(OSError, match="cannot read rows "):
        read_rows(rows, ids)
    for times, result in ((0, 0), (20, 513), (5, -errno.EAGAIN)):
        _core.inject_fault(_core.FileOp.read, 0, times, result)
        assert torch.equal(read_rows(rows, ids), expected[ids])
    _core.inject_fault(_core.FileOp.read, 0, 1, 0)
    with pytest.raises(OSError, match="cannot be read: the file ends before them"):
        read_rows(rows, torch.tensor([1_999]))


def test_settled_file_depends_on_its_rows_alone(path):
    once, often = path.with_name("once"), path.with_name("often")
    rows = rows_on_disk(once)
    rows.append(rows_from(0, 20), 20)
    rows.close()
    rows = rows_on_disk(often)
    for i in range(27):
        rows.append(rows_from(i, 1), i + 1)
        rows.sync()
    rows.truncate(20)
    rows.close()
    assert once.read_bytes() == often.read_bytes()


def test_threads_read_and_sync_while_one_appends(path):
    rows, wrong, is_done = rows_on_disk(path, budget=64 << 10), [], threading.Event()
    rows.append(rows_from(0, 100), 100)

    def read():
        while not is_done.is_set():
            ids = torch.cat([torch.randint(rows.num_rows, (20,)), torch.tensor([-1])])
            whole = torch.stack([rows_from(i, 1)[0] * (i >= 0) for i in ids.tolist()])
            if not torch.equal(read_rows(rows, ids), whole):
                wrong.append(ids)
            rows.sync()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(100, 2_100, 20):
        rows.append(rows_from(i, 20), i + 20)
    is_done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(read_rows(rows, torch.arange(2_100)), rows_from(0, 2_100))


KILLED = """
import sys, torch
from tgflow.graph.tables import DamagedFile, FeatureTable
from tgflow.graph.tables.disk import DiskRows
table = FeatureTable(64, torch.int64, "disk", path=sys.argv[1])
while True:
    table.append(torch.arange(len(table), len(table) + 500).unsqueeze(1).expand(-1, 64))
    if len(table) % 5_000 == 0:
        table.sync()
    print(len(table), flush=True)
"""


@pytest.mark.slow
def test_killed_process_loses_no_row_whose_append_returned(path):
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(23):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    table = FeatureTable(64, torch.int64, "disk", path=path)
    assert len(table) >= told
    ids = torch.arange(len(table))
    assert torch.equal(table[ids], ids.unsqueeze(1).expand(-1, 64))


def test_forked_process_must_open_the_table_itself(path):
    table = on_disk(path)
    table.append(some_rows(10))
    table[torch.tensor([1])]
    time.sleep(0.05)  # its thread waits for the next request
    child = os.fork()
    if child == 0:
        told = False
        with suppress(OSError):
            try:
                table[torch.tensor([1])]
            except OSError as error:
                told = "was opened before the process forked" in str(error)
                raise
        del table
        gc.collect()  # closes it
        os._exit(0 if told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table[torch.tensor([1])]


def test_auto_placement_continues_on_disk(path):
    rows = some_rows(6_000, 8)
    table = FeatureTable(8, budget=3_000 * 32, path=path)
    placements = []
    for part in rows.split(1_000):
        table.append(part)
        placements.append(table.placement)
    assert placements == ["host"] * 3 + ["disk"] * 3
    ids = torch.randint(6_000, (500,))
    assert torch.equal(table[ids], rows[ids])
    assert torch.equal(table.start_gather(ids).wait(), rows[ids])
    table.truncate(5_500)
    table.close()
    assert torch.equal(FeatureTable(8, path=path).read(0, 5_500), rows[:5_500])


def test_flipped_bit_is_an_error_or_harmless(path):
    rows, page = some_rows(6), 8 * 4096
    with closing(on_disk(path)) as table:
        table.append(rows)
        table.sync()
    good = path.read_bytes()
    for bit in (*range(0, 1_000, 13), *range(page, min(8 * len(good), page + 1_000), 7)):
        path.write_bytes(flip_bit(good, bit))
        try:
            with closing(on_disk(path)) as table:
                assert torch.equal(table[torch.arange(len(table))], rows), bit
        except DamagedFile:
            continue


WITHOUT_THREADS = """
import re, resource, sys
from pathlib import Path
import torch
from tgflow.graph.tables.disk import DiskRows

torch.ones(9) @ torch.ones(9)
pages = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (pages + (60 << 20),) * 2)
threads = set(Path("/proc/self/task").iterdir())
try:
    DiskRows(64, "float32 [16]", Path(sys.argv[1]), 16 << 20, "page cache")
except MemoryError as error:
    print(error)
print(set(Path("/proc/self/task").iterdir()) == threads, Path(sys.argv[1]).exists())
"""


@pytest.mark.slow
def test_table_that_lacks_a_thread_raises_and_leaves_nothing_behind(path):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_THREADS, path],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    message, left = ran.stdout.splitlines()
    assert message.startswith(f"cannot start a thread to read {path}: ")
    assert "ulimit -v" in message
    assert left == "True False"
