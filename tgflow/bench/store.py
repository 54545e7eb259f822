"""How fast the block store takes events, and what they cost to hold."""

from __future__ import annotations

import time
from pathlib import Path

from tgflow.bench import made
from tgflow.bench.row import Row
from tgflow.graph import TemporalGraph

BATCH = 10_000


def run(data: Path | None = None, rounds: int = 3) -> list[Row]:
    """Measure inserts of 10,000 events a batch, both directions, on one core.

    Args:
        data: `wikipedia.csv(.gz)`; None for a made stream of its shape.
        rounds: How often each figure is measured; the best counts.
    """
    streams = {
        "wikipedia" if data else "wikipedia-shaped": made.wikipedia(data),
        "power law, 500 k nodes": made.power_law(2_500_000, 500_000),
    }
    rows = []
    for name, events in streams.items():
        batches = [events[at : at + BATCH] for at in range(0, len(events), BATCH)]
        best = float("inf")
        for _ in range(rounds):
            graph = TemporalGraph()
            started = time.perf_counter()
            for batch in batches:
                graph.append(batch)
            best = min(best, time.perf_counter() - started)
        stats = graph.stats()
        params: dict[str, str | int | float] = {"stream": name, "batch": BATCH, "threads": 1}
        entry_bytes = stats.bytes / stats.num_entries
        rows += [
            Row("insert", len(events) / best, "events/s", params, baseline=2e6),
            Row("memory", entry_bytes, "bytes/entry", {**params, "slack": round(stats.slack, 3)}),
        ]
    return rows
