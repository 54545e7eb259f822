"""Benchmark of disk tables: every method reads the same rows within its limits."""

from __future__ import annotations

import torch

from benchmarks import disk
from benchmarks.disk import MappedRows, Pass, take
from tgflow.graph.tables import FeatureTable

DIM = 172


def task_of(path, method, limit_s=60.0):
    return Pass(method, str(path), 3_000, 1_000, DIM, batch=50, budget=8 << 20, limit_s=limit_s)


def test_every_method_reads_the_same_rows(tmp_path):
    path = tmp_path / "x.rows"
    disk.write_table(path, 3_000, DIM)
    table = FeatureTable(DIM, placement="disk", path=path)
    ids = torch.tensor([5, 0, 2_999, 5])
    assert torch.equal(MappedRows(str(path), 3_000, DIM).gather(ids), table.gather(ids))
    table.close()
    taken = {method: take(task_of(path, method)) for method in disk.METHODS}
    assert len({tuple(each.rows) for each in taken.values()}) == 1
    assert len(taken["mmap"].rows) == 20
    assert len(take(task_of(path, "lru", limit_s=0.0)).rows) == 1
