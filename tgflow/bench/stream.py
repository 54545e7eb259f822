"""How fast rows become events in order: the reorder buffer, files, and Kafka."""

from __future__ import annotations

import importlib
import importlib.util

from tgflow.bench.options import Options
from tgflow.bench.row import Row

PARTS = ("reorder", "stream_files", "stream_kafka")
"""Modules of `tgflow.bench`, each with `run(options) -> list[Row]`."""


def run(options: Options) -> list[Row]:
    """Measure all parts that are there."""
    rows: list[Row] = []
    for part in PARTS:
        name = f"tgflow.bench.{part}"
        if importlib.util.find_spec(name) is not None:
            rows += importlib.import_module(name).run(options)
    return rows
