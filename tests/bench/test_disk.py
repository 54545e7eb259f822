"""Benchmark of disk tables: every method reads the same rows within its limits."""

from __future__ import annotations

import pytest
import torch

from benchmarks import disk
from benchmarks.disk import MappedRows, Pass, PassTimes, memory_group, take
from tgflow.tables import FeatureTable

DIM = 172


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("disk") / "x.rows"
    disk.write_table(path, 3_000, DIM)
    return path


def task_of(path, method, limit_s=60.0):
    return Pass(method, str(path), 3_000, 1_000, DIM, batch=50, budget=8 << 20, limit_s=limit_s)


def test_every_method_reads_the_same_rows(path):
    table = FeatureTable(DIM, placement="disk", path=path)
    ids = torch.tensor([5, 0, 2_999, 5])
    assert torch.equal(MappedRows(str(path), 3_000, DIM).gather(ids), table.gather(ids))
    table.close()
    taken = {method: take(task_of(path, method)) for method in disk.METHODS}
    assert len({tuple(each.rows) for each in taken.values()}) == 1
    assert len(taken["mmap"].rows) == 20
    assert len(take(task_of(path, "lru", limit_s=0.0)).rows) == 1


def test_rows_compare_only_batches_read_by_both_methods():
    belady = PassTimes([1.0, 2.0, 3.0], [10, 20, 30])
    taken = {"belady": belady, "lru": PassTimes([2.0, 4.0, 6.0], [10, 20, 30])}
    rows = list(disk.compared({**taken, "mmap": PassTimes([8.0, 9.0], [10, 20])}, {}))
    assert [row.ratio for row in rows] == [2.0, 4.5]
    (_, mmap) = disk.compared({**taken, "mmap": None}, {})
    assert "run as root" in str(mmap.params["skipped"])


def test_without_a_controller_there_is_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "CGROUPS", tmp_path / "none")
    with memory_group("tgflow-test") as group:
        assert group is None
