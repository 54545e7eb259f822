"""Benchmark of ranks at tiny sizes: processes, rows and targets."""

from __future__ import annotations

import pytest

from benchmarks.ranks import Work, start


@pytest.mark.slow
def test_each_measurement_runs_in_a_new_process():
    found = start(Work("tgn", batch=20, warm_up=1, batches=2, dim=4, world=2))
    assert len(found) == 2
    for each in found:
        assert min(each.compute, each.batches, each.records, each.wait) > 0
        assert sum(each.by_kind().values()) == pytest.approx(each.total)
