"""How fast events are put in order: by the buffer alone, and by the whole path into the log."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import pyarrow as pa

from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.durable.log import DurableLog
from tgflow.ids import NodeIds
from tgflow.streams.ingest.config import AFTER_ALL, OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ordered_rows import Rows, ranks
from tgflow.streams.ingest.reorder import ReorderBuffer
from tgflow.streams.rows.columns import EventColumns
from tgflow.streams.rows.row_batch import PolledRows, Position, RowBatch
from tgflow.streams.rows.schema import IdKind

EVENTS = 2_000_000
BOUND = 100_000
"""Events that one may come behind others, on average half of it."""
NODES = 1_000_000
POLL = 10_000
TARGET = 3e6


def run(options: Options) -> list[Row]:
    """Measure the buffer on shuffled and on sorted events, then ingestion as a whole."""
    num = EVENTS // 10 if options.quick else EVENTS
    rows = []
    for shuffled, poll, x_dim in (
        (True, POLL, 0),
        (True, POLL, 4),
        (True, 1000, 0),
        (True, 100, 0),
        (False, POLL, 0),
    ):
        options.say(f"reorder: polls of {poll}, {x_dim} features")
        events = made(num, shuffled, x_dim)
        speed = max(buffer_speed(events, poll) for _ in range(options.rounds))
        target = TARGET if shuffled and poll == POLL and not x_dim else None
        rows.append(Row("reorder", speed, "events/s", params(shuffled, poll, x_dim), target))
    for with_log in (False, True):
        for shuffled in (True, False):
            options.say("reorder: ingestion" + (" into the log" if with_log else ""))
            events = made(num, shuffled, 0)
            speed = max(ingest_speed(events, with_log) for _ in range(options.rounds))
            also: Params = {"log": "yes" if with_log else "no"}
            rows.append(Row("ingest", speed, "events/s", params(shuffled, POLL, 0) | also))
    return rows


def params(shuffled: bool, poll: int, x_dim: int) -> Params:
    """Return what a figure was measured on."""
    order = f"shuffled within {BOUND}" if shuffled else "sorted"
    return {"events": order, "poll": poll, "features": x_dim}


def made(num: int, shuffled: bool, x_dim: int) -> EventColumns:
    """Return events, each at most `BOUND` behind one that comes before it."""
    rng = np.random.default_rng(0)
    order = np.arange(num)
    if shuffled:
        order = np.argsort(order + rng.uniform(0, BOUND, num))
    return EventColumns(
        pa.array(rng.integers(0, NODES, num)),
        pa.array(rng.integers(0, NODES, num)),
        order.astype(np.int64),
        None,
        rng.random((num, x_dim), np.float32) if x_dim else None,
    )


def buffer_speed(events: EventColumns, poll: int) -> float:
    """Return events a second through a buffer that holds `BOUND` of them."""
    pieces = [
        Rows(ranks(0, np.arange(at, at + len(piece))), piece) for at, piece in cut(events, poll)
    ]
    buffer, latest, num = ReorderBuffer(), 0, 0
    start = time.perf_counter()
    for piece in pieces:
        buffer.add(piece)
        latest = max(latest, int(piece.t.max()))
        num += sum(map(len, buffer.release(latest - BOUND)))
    num += sum(map(len, buffer.release(AFTER_ALL)))
    seconds = time.perf_counter() - start
    assert num == len(events)
    return len(events) / seconds


def ingest_speed(events: EventColumns, with_log: bool) -> float:
    """Return events a second from arrivals in memory to batches with dense ids."""
    config = OrderConfig(allowed_lateness=BOUND)
    with tempfile.TemporaryDirectory() as directory:
        log = DurableLog(Path(directory)) if with_log else None
        ingest = Ingest(InMemory(events), config, log=log)
        start = time.perf_counter()
        num = 0
        for batch in ingest:
            num += len(batch)
            ingest.forget_before(num)
        seconds = time.perf_counter() - start
        if log is not None:
            log.close()
    assert num == len(events)
    return num / seconds


def cut(events: EventColumns, size: int) -> Iterator[tuple[int, EventColumns]]:
    """Yield where each piece begins, and the piece."""
    for at in range(0, len(events), size):
        yield at, events.stretch(at, min(at + size, len(events)))


class InMemory:
    """One partition of good rows, already decoded."""

    name = "memory"
    unit = "s"
    id_kind: IdKind = "int"

    def __init__(self, events: EventColumns) -> None:
        self.ids = NodeIds()
        self.x_dim = 0 if events.x is None else events.x.shape[1]
        self.num_events: int | None = len(events)
        self._pieces = cut(events, POLL)
        self._left = len(events)

    def start(self, positions: Mapping[int, Position]) -> None:
        """Begin."""

    def partitions(self) -> Sequence[int]:
        """Return the one there is."""
        return [0]

    def look_for_partitions(self) -> Sequence[int]:
        """Return none."""
        return []

    def poll(self, wanted: Set[int], timeout: float) -> list[PolledRows]:
        """Return the next piece."""
        at, piece = next(self._pieces)
        self._left -= len(piece)
        position: Position = {"row": at + len(piece)}
        return [PolledRows(0, RowBatch(piece, num_rows=len(piece), position=position))]

    def ended(self) -> Set[int]:
        """Return the partition once it is read."""
        return set() if self._left else {0}

    def lag(self) -> Mapping[int, int]:
        """Return how many rows are left."""
        return {0: self._left}

    def progress(self) -> float:
        """Return nothing of use."""
        return 0.0

    def counters(self) -> Mapping[str, float]:
        """Return nothing."""
        return {}

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
