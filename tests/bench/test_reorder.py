"""The bench of ordering: quick, with rows well formed."""

from __future__ import annotations

import math

from benchmarks import reorder
from tgflow.bench.options import Options


def test_ordering_is_measured(monkeypatch):
    monkeypatch.setattr(reorder, "EVENTS", 200_000)
    monkeypatch.setattr(reorder, "BOUND", 1_000)
    rows = reorder.run(Options(quick=True))
    assert [row.name for row in rows] == ["reorder"] * 5 + ["ingest"] * 4
    assert all(row.value > 0 and not math.isnan(row.value) for row in rows)
    assert [row.target for row in rows if row.target] == [3e6]
