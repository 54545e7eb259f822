"""What a comparison takes is measured beside its models."""

from __future__ import annotations

from benchmarks import compare
from tgflow.bench.options import Options


def test_each_line_up_has_its_rows(monkeypatch):
    names = ("recency", "tgn+pairs")
    monkeypatch.setattr(compare, "LINEUPS", {"two": names})
    assert compare.made("tgn+pairs").counts
    rows = compare.run(Options(quick=True, events=400))
    assert [row.name for row in rows] == [
        "compare, of what its models compute",
        "compare, of runs one by one",
    ]
    assert all(row.params["models"] == "two" and row.value > 0 for row in rows)
    assert rows[0].value > 1  # it does what they do, and more


def test_it_may_take_little_more_than_its_models():
    [one, other] = compare.rows_of(1.1, 1.1, {})
    assert (one.reached, other.reached) == (True, False)
