"""Open files, folders and tables as streams of events."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from threading import Event
from typing import Any

import numpy as np

from tgflow.base.describe import described
from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.graph.events import EventBatch, concat
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import StreamError
from tgflow.streams.files.reader import DEPTH, Reader
from tgflow.streams.options import StreamOptions
from tgflow.streams.prefetch import Ended, Prefetcher
from tgflow.streams.rows.row_batch import EventColumns, RowBatch, to_batch

MAX_BATCH = 1 << 16
"""Maximum events per batch."""
POLL_SECONDS = 1.0


@described
class EventSource(Reader):
    """The events of files or tables in sequence, up to the first bad row."""

    progress = 0.0
    """Share of the data that the latest iteration has read, 0 to 1."""
    sort = False
    """Whether everything is read first and sorted by time, ties in file order."""
    origin: Mapping[str, Any] = {}
    """Path and options of `open_stream`; the path of an in-memory table is empty."""

    def first(self, count: int) -> EventBatch:
        """Return the first `count` events in file order, without bad rows.

        Node ids are dense over these events alone.
        """
        batches, ids, left = [], NodeIds(self.ids.bipartite), count
        with closing(self._read()) as read:
            while left and (found := next(read, None)) is not None:
                batches.append(to_batch(found[0].events.take(slice(0, left)), ids))
                left -= len(batches[-1])
        return concat(batches)

    def _facts(self) -> dict[str, object]:
        names = ("name", "num_events", "unit", "x_dim", "ids")
        return {name: getattr(self, name) for name in names}

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Texts of the classes 0, 1, ... so far: "relation", "label", and by categorical column."""
        names = self._options.label_names if self._options.label else ()
        found = {role: tuple(each.names) for role, each in self._classes.items()}
        return found | ({"label": names} if names else {})

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start. A background thread reads a few blocks ahead.

        Raises:
            StreamError: At the first bad row, after the events before it.
        """
        self.progress = 0.0
        last, held, stop = INT64_MIN, list[EventColumns](), Event()
        ahead = Prefetcher(self._read(None, stop), DEPTH)
        try:
            while True:
                if (read := ahead.take(POLL_SECONDS)) is None:
                    continue
                rows, self.progress = read
                events, error = self._until_error(rows, last)
                if len(events) and self.sort:
                    held.append(events)
                elif len(events):
                    last = int(events.t[-1])
                    yield from self._batches(events)
                if error is not None:
                    raise error
        except Ended:
            pass
        finally:
            stop.set()
            ahead.close()
        if held:
            whole = EventColumns.concat(held)
            yield from self._batches(whole.take(np.argsort(whole.t, kind="stable")))
        self.progress = 1.0

    def _batches(self, events: EventColumns) -> Iterator[EventBatch]:
        for at in range(0, len(events), MAX_BATCH):
            yield to_batch(events.take(slice(at, at + MAX_BATCH)), self.ids)

    def _until_error(self, rows: RowBatch, last: int) -> tuple[EventColumns, StreamError | None]:
        """Return the events before the first row that is bad or early, and the error."""
        t = rows.events.t
        number = np.arange(len(t)) if rows.index is None else rows.index
        before = np.concatenate([np.array([last]), t[:-1]])
        wrong = (t == INT64_MIN) | (t == INT64_MAX)
        if not self.sort:
            wrong |= t < before
        found = [(row, *fault) for row, fault in [*rows.faults.items()][:1]]
        if wrong.any():
            at = int(np.argmax(wrong))
            code, text = "time_range", f"t is {t[at]}, the smallest or largest int64"
            if INT64_MIN < t[at] < before[at]:
                code = "time_order"
                text = f"tick {t[at]} comes after tick {before[at]}; times must not decrease: "
                text += "pass sort=True to read everything first and sort it by time"
            found.append((int(number[at]), code, text))
        if not found:
            return rows.events, None
        row, code, text = min(found)
        good = rows.events.take(slice(0, int(np.searchsorted(number, row))))
        return good, StreamError(rows.locate(row).where, code, text)


def open_stream(
    source: Any,
    *,
    sort: bool = False,
    ids: NodeIds | None = None,
    bipartite: bool | None = None,
    **options: Any,
) -> EventSource:
    """Open a file, a folder, or an in-memory table as one ordered stream of events.

    Files are CSV, TSV, JSON lines (each also compressed: `.gz`, `.zst`, `.bz2`), Parquet, Arrow IPC
    and Feather. Published formats without conversion: JODIE's CSV files (columns src, dst, t,
    label, f0, f1, ...; a bipartite stream with its features), DyGLib's `ml_NAME.csv` with the
    features in `ml_NAME.npy`, SNAP's `.txt` (src, dst, t), Network Repository's `.edges` and
    KONECT's `out.NAME` (src, dst, weight, t), all without headers.

    A folder is read in order of file name, with digits compared as numbers (`part-2` before
    `part-10`); names that start with `.` or `_` are skipped. Tables are pyarrow tables and batches,
    data frames with the Arrow C stream interface (pandas, polars, also lazy ones), dicts of columns
    (NumPy, torch, lists), tuples of them (src, dst, t, and optionally x), iterables of dicts, one
    per row, and `TemporalData` of PyTorch Geometric, whose features are `features="msg"`.

    Args:
        source: A path, a list of paths, or a table; "-" is stdin, as CSV unless `format` is given.
        sort: Read everything first and sort it by time, ties in file order. Without it times must
            not decrease.
        ids: An existing id map, or None for a new one. `bipartite` is then the map's.
        bipartite: Whether sources and destinations are separate name spaces; None: as declared by
            the file (JODIE's, some of KONECT's).
        **options: Fields of `StreamOptions`: the columns, their units, the format, ...

    Returns:
        A source that can be iterated repeatedly, in bounded memory unless `sort`.

    Raises:
        FileNotFoundError: If the file or folder does not exist.
        StreamError: If a file has an unknown format, or lacks a column. Iterating raises it at the
            first bad row, with file and line (or row, from 0).
        TypeError: If an option is unknown.
        ValueError: If an option has an invalid value.

    Example:
        >>> payments = {"src": ["ann", "bob"], "dst": ["shop", "shop"], "t": [5, 7]}
        >>> source = tg.open_stream(payments, time_unit="s")
        >>> [batch.t.tolist() for batch in source], source.ids.decode(torch.tensor([1]))
        ([[5, 7]], ['shop'])
    """
    stream = EventSource(source, ids=ids, bipartite=bipartite, **options)
    if stream.refusal is not None:
        raise stream.refusal
    path = str(source) if isinstance(source, str | os.PathLike) else ""
    given = {**asdict(StreamOptions(**options)), **stream.columns}
    stream.sort, stream.origin = sort, {"path": path, "sort": sort, **given}
    return stream
