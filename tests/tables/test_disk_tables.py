"""Tables on disk: what was appended comes back, whatever happens to the file, the disk or us."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tgflow as tg
from tgflow import _core
from tgflow.tables import DamagedFile, FeatureTable
from tgflow.tables.disk import DiskRows

WAYS = ("io_uring", "pread", "page cache")


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


def test_a_file_is_there_again(path):
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


def test_a_table_without_a_path_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = on_disk(None)
    rows = some_rows(50)
    table.append(rows)
    assert torch.equal(table.read(0, 50), rows)
    assert not list(tmp_path.iterdir())


def test_temporary_tables_leave_no_descriptor_open():
    def cycle() -> None:
        table = on_disk(None)
        table.append(some_rows(3))
        assert table[torch.tensor([2])].shape == (1, 3)
        table.close()

    cycle()
    before = open_files()
    for _ in range(20):
        cycle()
    assert open_files() <= before


def open_files():
    """Return how many descriptors are of files; other threads may open sockets meanwhile."""
    return sum(descriptor.is_file() for descriptor in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_reading_tells_of_errors(path, way):
    rows = some_rows(1_000)
    on_disk(path).append(rows)
    read, ids = DiskRows(12, "float32 [3]", path, 1 << 20, way), torch.arange(1_000).flip(0)
    out = torch.empty(1_000, 3)
    _core.inject_fault(_core.FileOp.read, 0, 1, -errno.EIO)
    with pytest.raises(OSError, match=r"cannot read rows \d+ to \d+ of .*: Input/output"):
        read.gather(ids, out, 1_000)
    _core.inject_fault(_core.FileOp.read, 0, 8, 600)
    read.gather(ids, out, 1_000)
    assert torch.equal(out, rows[ids])
    read.close()


def test_a_file_that_is_cut_under_a_table_is_an_error(path):
    rows = some_rows(1_000)
    table = on_disk(path)
    table.append(rows)
    os.truncate(path, 4096 + 16 * 300)
    with pytest.raises(DamagedFile, match="cannot be read: the file ends before them"):
        table[torch.arange(1_000)]
    assert torch.equal(table[torch.arange(200)], rows[:200])


def test_a_torn_row_is_dropped_and_written_again(path):
    rows = some_rows(60)
    table = on_disk(path)
    table.append(rows[:40])
    table.sync()
    table.append(rows[40:50])
    del table
    os.truncate(path, path.stat().st_size - 7)
    table = on_disk(path)
    assert len(table) == 49
    table.append(rows[49:])
    assert torch.equal(table[torch.arange(60)], rows)


@pytest.mark.parametrize("budget", [0, 1, 4_095, "4KiB"])
@pytest.mark.parametrize("dim", [1, 100, 30_000])
def test_budgets_below_a_page_or_a_row_are_enough(path, budget, dim):
    rows = some_rows(40, dim)
    for table in (on_disk(path, dim, budget=budget), FeatureTable(dim, budget=budget)):
        table.append(rows)
        assert table.placement == "disk" or rows.nbytes <= 4_096
        ids = torch.arange(40).flip(0)
        assert torch.equal(table[ids], rows[ids])


def test_a_path_that_is_no_file_is_an_error(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"cannot open .*: Is a directory"):
        on_disk(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"cannot open .*/no/rows: No such file"):
        on_disk(tmp_path / "no" / "rows")
    with pytest.raises(ValueError, match="path holds a null byte"):
        on_disk(f"{tmp_path}/a\0b")
    assert not list(tmp_path.iterdir())


def test_rows_on_disk_do_not_change(path):
    table = on_disk(path)
    table.append(some_rows(5))
    with pytest.raises(io.UnsupportedOperation, match="a table on disk only grows"):
        table.scatter_(torch.tensor([1]), torch.zeros(1, 3))


def test_rows_come_ahead_of_their_use(path):
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
def test_an_append_that_fails_changes_nothing(path, error):
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


def test_a_sync_that_fails_is_never_taken_for_one_that_did_not(path):
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


def test_a_full_file_system_costs_nothing_that_was_acknowledged(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        table = on_disk(disk / "rows", 64)
        rows = torch.arange(64 * 2_000.0).view(-1, 64)
        parts = iter(rows.split(70))
        with pytest.raises(OSError, match="No space left on device") as caught:  # noqa: PT012
            for part in parts:
                table.append(part)
        assert caught.value.errno == errno.ENOSPC
        size = len(table)
        assert size == 70 * (size // 70) > 0
        assert torch.equal(table.read(0, size), rows[:size])
        table.close()
        table = on_disk(disk / "rows", 64)
        assert torch.equal(table.read(0, size), rows[:size])
        table.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLED = """
import sys, torch
from tgflow.tables import FeatureTable
table = FeatureTable(64, torch.int64, "disk", path=sys.argv[1])
while True:
    table.append(torch.arange(len(table), len(table) + 500).unsqueeze(1).expand(-1, 64))
    if len(table) % 5_000 == 0:
        table.sync()
    print(len(table), flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_row_whose_append_returned(path):
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(23):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    table = FeatureTable(64, torch.int64, "disk", path=path)
    assert len(table) >= told
    ids = torch.arange(len(table))
    assert torch.equal(table[ids], ids.unsqueeze(1).expand(-1, 64))


def test_a_forked_process_is_told_to_open_the_table_itself(path):
    table = on_disk(path)
    table.append(some_rows(10))
    child = os.fork()
    if child == 0:
        try:
            table[torch.tensor([1])]
        except OSError as error:
            told = "was opened before the process forked" in str(error)
            table = None
            os._exit(0 if told else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table[torch.tensor([1])]


def test_auto_goes_on_in_a_file(path):
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


def test_auto_tries_again_to_go_on_in_a_file_that_was_full(path):
    rows = some_rows(100)
    table = FeatureTable(3, budget=40 * 12, path=path)
    table.append(rows[:40])
    for _ in range(2):
        _core.inject_fault(_core.FileOp.write, 0, 1, -errno.ENOSPC)
        with pytest.raises(OSError, match="No space left on device"):
            table.append(rows[40:])
        assert (len(table), table.placement) == (40, "host")
        assert torch.equal(table.read(0, 40), rows[:40])
    table.append(rows[40:])
    assert table.placement == "disk"
    assert torch.equal(table.read(0, 100), rows)


def test_auto_goes_on_in_no_file_of_somebody_else(path):
    table = FeatureTable(3, budget=40 * 12, path=path)
    table.append(some_rows(40))
    other = on_disk(path)
    other.append(some_rows(5))
    other.close()
    with pytest.raises(FileExistsError, match=r"now has 5 of somebody else's"):
        table.append(some_rows(1))
    assert (len(table), table.placement) == (40, "host")
    assert len(on_disk(path)) == 5


MEMORY = """
import sys, resource, torch
from tgflow.tables import FeatureTable
budget = 64 << 20
table = FeatureTable(256, budget=budget, path=sys.argv[1])
part, out = torch.randn(1_000, 256), torch.empty(2_000, 256)
table.append(part)
table[torch.arange(100)]
def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024
before = held()
most = 0
for i in range(199):
    table.append(part)
    table.gather(torch.randint(len(table), (2_000,)), out)
    most = max(most, held() - before)
print(table.placement, most / budget)
"""


@pytest.mark.slow
def test_memory_stays_within_the_budget(path):
    """200 MB of rows, 64 MiB of budget."""
    command = [sys.executable, "-c", MEMORY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    placement, share = done.stdout.split()
    assert placement == "disk"
    assert float(share) <= 1.1
