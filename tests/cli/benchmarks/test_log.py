"""Benchmark of the memory of a rank: complete rows, and a mapped log takes less."""

import pytest

from tgflow.cli.benchmarks import log
from tgflow.cli.benchmarks.setup import Options


@pytest.mark.slow
def test_mapped_log_takes_less_memory_than_one_in_memory():
    rows = log.log(Options(quick=True))
    assert [row.params["events"] for row in rows] == [2 << 20, 4 << 20]
    last = rows[-1]
    assert last.unit == "MB"
    assert last.baseline - last.value > 24 * (2 << 20) / 1e6  # of 4 segments, 2 at least
