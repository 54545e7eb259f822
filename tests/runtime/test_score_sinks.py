"""Rows of scores on their way to a Parquet file."""

from __future__ import annotations

from tgflow.runtime import score_sinks


class CountedBatch:
    """A batch of one row, which counts how often its size is asked for."""

    def __init__(self):
        self.num_asked = 0

    def __len__(self):
        self.num_asked += 1
        return 1


def test_however_small_batches_are_each_is_looked_at_once(monkeypatch):
    monkeypatch.setattr(score_sinks, "_PARQUET_ROWS", 100)
    monkeypatch.setattr(score_sinks.pa, "concat_batches", len)
    batches = [CountedBatch() for _ in range(250)]
    assert [*score_sinks._joined(batches)] == [100, 100, 50]
    assert {batch.num_asked for batch in batches} == {1}
