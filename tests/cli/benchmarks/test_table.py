"""Benchmarks of tables, on the CPU and an emulated GPU, and of files."""

from __future__ import annotations

import math

from benchmarks import stream, table
from helpers.emulator.device import EmulatedDevice
from tgflow.cli.benchmarks.setup import Options

QUICK = Options(quick=True, device="cpu")


def test_placements_are_measured_against_their_alternatives(monkeypatch):
    for name, value in {"WIDTHS": (100,), "GPU_CALL": 50, "SMALL_CALL": 20}.items():
        monkeypatch.setattr(table, name, value)
    rows = table.run(QUICK)
    assert [row.params["beside"] for row in rows] == ["index_select", "indexing"]
    rows += table.gpu_rows(128, EmulatedDevice(), QUICK)
    cache = "gather through a cache, over plain uva"
    assert [row.name for row in rows[2:]] == ["bus in use", cache, cache, "memory bandwidth in use"]
    assert [row.params["ids"] for row in rows[3:5]] == [20, 50]
    assert 0.8 < rows[4].params["hit rate"] < 1
    assert all(row.value > 0 and math.isfinite(row.value) for row in rows)


def test_all_good_rows_of_files_reach_the_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = stream.write_files(tmp_path, 2000)
    read = [stream.into_log(tmp_path / name, tmp_path) for name in names]
    assert read == [2000, 2000 - stream.NUM_BAD, 2000]
    assert [stream.read_bare(tmp_path / name) for name in names] == [2000] * 3
    monkeypatch.setattr(stream, "NUM_ROWS", 20_000)
    rows = stream.run(Options(quick=True))
    assert [row.target for row in rows] == [3e6, 2.5e6, 10e6]
    assert all(row.value > 0 and row.baseline for row in rows)
