"""The bench of tables: quick, on the CPU, and with a GPU that is the CPU."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks import cache_gpu, table
from helpers.emulator.device import EmulatedDevice
from tgflow.bench.setup import Options

QUICK = Options(quick=True, device="cpu")


def test_places_on_the_cpu_are_measured(monkeypatch):
    monkeypatch.setattr(table, "WIDTHS", (100,))
    rows = table.run(QUICK)
    assert {row.params["placement"] for row in rows} == {"host"}
    assert all(row.value > 0 for row in rows)
    assert [row.params["beside"] for row in rows if row.name == "gather rows"] == [
        "index_select",
        "indexing",
    ]
    json.dumps([row.to_json() for row in rows], allow_nan=False)


def test_a_gpu_is_measured_beside_what_it_replaces(monkeypatch):
    monkeypatch.setattr(table, "GPU_CALL", 50)
    monkeypatch.setattr(cache_gpu, "CALL", 50)
    rows = list(table.gpu_rows(128, EmulatedDevice(), QUICK))
    names = [(row.name, row.params.get("beside")) for row in rows]
    assert names == [
        ("gather rows", "staged"),
        ("gather rows", "indexing"),
        ("bus in use", None),
        ("gather through a cache on the GPU", None),
        ("gather through a cache, over plain uva", None),
        ("memory bandwidth in use", None),
    ]
    assert 0.8 < rows[3].params["hit rate"] < 1
    assert all(row.value > 0 and math.isfinite(row.value) for row in rows)


def test_other_rows_are_an_error():
    out = torch.zeros(3)
    with pytest.raises(RuntimeError, match="wrong gives other rows"):
        table.check_alike({"wrong": lambda i: None}, out, torch.ones(3))
