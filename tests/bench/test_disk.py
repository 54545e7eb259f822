"""The bench of tables on disk: every method reads the same rows, within its limits."""

from __future__ import annotations

import pytest
import torch

from benchmarks import disk
from benchmarks.disk import MappedRows, MemoryGroup, NoLimit, Pass, PassTimes, memory_group, take
from tgflow.tables import FeatureTable

DIM = 172


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("disk") / "x.rows"
    disk.write_table(path, 3_000, DIM)
    return path


def task_of(path, method, limit_s=60.0):
    return Pass(method, str(path), 3_000, 1_000, DIM, batch=50, budget=8 << 20, limit_s=limit_s)


def test_mapped_file_holds_the_rows_of_the_table(path):
    table = FeatureTable(DIM, placement="disk", path=path)
    ids = torch.tensor([5, 0, 2_999, 5])
    assert torch.equal(MappedRows(str(path), 3_000, DIM).gather(ids), table.gather(ids))
    table.close()


def test_every_method_reads_the_same_rows(path):
    taken = {method: take(task_of(path, method)) for method in disk.METHODS}
    assert len({tuple(each.rows) for each in taken.values()}) == 1
    assert len(taken["mmap"].rows) == 20
    assert min(taken["belady"].misses, taken["lru"].hits) > 0
    assert taken["mmap"].misses == 0
    assert len(take(task_of(path, "lru", limit_s=0.0)).rows) == 1


def test_rows_compare_batches_that_both_methods_read():
    belady = PassTimes([1.0, 2.0, 3.0], [10, 20, 30], 20, 10, 100)
    taken = {"belady": belady, "lru": PassTimes([2.0, 4.0, 6.0], [10, 20, 30], 10, 20, 100)}
    rows = list(disk.compared({**taken, "mmap": PassTimes([8.0, 9.0], [10, 20])}, {}, 100))
    assert [row.ratio for row in rows[:2]] == [2.0, 4.5]
    assert [row.value for row in rows if "misses" in row.name] == [1 / 3, 2 / 3]
    assert [row.reached for row in rows if "memory" in row.name] == [True, True]
    (_, mmap, *_) = disk.compared({**taken, "mmap": None}, {}, 100)
    assert "run as root" in str(mmap.params["skipped"])


@pytest.mark.parametrize("is_v2", [False, True])
def test_memory_group_reads_and_writes_the_files_of_its_version(tmp_path, is_v2):
    names = {
        False: ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes"),
        True: ("memory.current", "memory.peak", "memory.max"),
    }
    usage, peak, limit = (tmp_path / name for name in names[is_v2])
    usage.write_text("70\n")
    peak.write_text("90\n")
    group = MemoryGroup(tmp_path, is_v2)
    assert (group.peak, group.settle()) == (90, 70)
    group.limit(123)
    assert limit.read_text() == "123"


def test_without_a_controller_there_is_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "CGROUPS", tmp_path / "none")
    with pytest.raises(NoLimit), memory_group("tgflow-test"):
        pass
