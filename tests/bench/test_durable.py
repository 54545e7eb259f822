"""The bench of log and checkpoints: quick, with rows well formed and baselines."""

import json

from benchmarks import durable
from tgflow.bench.options import Options


def test_rows_are_well_formed_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = durable.run(Options(quick=True))
    for row in json.loads(json.dumps([row.to_json() for row in rows], allow_nan=False)):
        assert row["value"] > 0
    assert len({(row.name, row.unit, *sorted(row.params.items())) for row in rows}) == len(rows)
    assert sum(row.baseline is not None for row in rows) == 3
    assert list(tmp_path.iterdir()) == []
