"""Open files, folders and tables as sources of events."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tgflow.ids import NodeIds
from tgflow.streams.files.csv import TextLayout
from tgflow.streams.files.reader import FileSource, Reader, find_files
from tgflow.streams.files.text import BLOCK_BYTES
from tgflow.streams.rows.schema import Checks, IdKind, Schema, Times
from tgflow.streams.source import EventSource


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamOptions:
    """How the rows of a source become events; the keyword arguments of `open_stream`.

    Args:
        src: Name of the column of source nodes: integers or strings.
        dst: Name of the column of destination nodes.
        t: Name of the column of times: numbers in `time_unit`, or a timestamp column.
        label: Name of the column of edge types or labels: integers, booleans, or texts, which
            become 0, 1, ... in order of appearance (`EventSource.label_classes`; false and true are
            0 and 1); None reads none.
        weight: Name of the column of weights: the loss of each event is multiplied by its weight in
            training; None weighs all alike.
        features: Names of the edge feature columns, or the prefix they share; columns of lists will
            do. None reads those that the format declares (JODIE's), else none.
        time_unit: Unit of the file's numbers: s, ms, us, ns, m, h, d, day, or tick. None goes by
            the first rows: ms, us or ns where all of them are dates of 1980 to 2099 in that unit,
            else s. Times may also be timestamps, and texts such as `2024-05-01 12:00:00.5+02:00`
            (ISO 8601, or as SQL writes it); without a zone they are UTC.
        tick_unit: Unit of the stream's int64 ticks; None is `time_unit`, or without one what the
            decimals of the first timestamps and texts need. Times that fall between two ticks are
            an error, never rounded: `time_unit="s", tick_unit="ms"` keeps 3 decimals. The least and
            the largest int64 are no times.
        format: csv, tsv, jodie, dyglib, snap, edges, konect, parquet, arrow, jsonl, npz or pt; None
            goes by the name's ending.
        header: Whether the first line of delimited text names the columns. None: unless `columns`
            names them, and for SNAP's, KONECT's and `.edges` no.
        columns: Names of the columns of delimited text in order, as "src,dst,_,t"; "_" is not read.
        sep: What stands between two values: a character, "tab", or "space" for any number of
            spaces and tabs.
        comment: What lines begin with that are no rows.
        id_kind: "int" or "string"; None goes by the first row.
        fill_missing: What features are that are empty, null or NaN; None: such a row is no event.
        bipartite: Whether sources and destinations are separate name spaces; None: where the file
            says so, as JODIE's and some of KONECT's do.

    Raises:
        ValueError: If an option is out of its choices.
    """

    src: str = "src"
    dst: str = "dst"
    t: str = "t"
    label: str | None = None
    weight: str | None = None
    features: str | Sequence[str] | None = None
    time_unit: str | None = None
    tick_unit: str | None = None
    format: str | None = None
    header: bool | None = None
    columns: str | Sequence[str] | None = None
    sep: str | None = None
    comment: str | None = None
    id_kind: IdKind | None = None
    fill_missing: float | None = None
    bipartite: bool | None = None

    def __post_init__(self) -> None:
        if self.id_kind not in (None, "int", "string"):
            raise ValueError(f"unknown id_kind {self.id_kind!r}; choose 'int', 'string' or None")
        if self.fill_missing is not None and not math.isfinite(self.fill_missing):
            raise ValueError(f"fill_missing must be a finite number, got {self.fill_missing}")

    def reader_of(
        self,
        source: Any,
        *,
        event_id: str | None = None,
        checks: Checks | None = None,
        max_file_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        follow: bool = False,
    ) -> tuple[str, Reader, bool]:
        """Return the name of a source, its reader, and whether its stream is bipartite.

        The arguments are those of `open_files`.
        """
        schema = Schema(
            self.src,
            self.dst,
            self.t,
            self.label,
            self.features,
            self.id_kind,
            event_id,
            self.fill_missing,
            self.weight,
        )
        layout = TextLayout(self.header, self.columns, self.sep, self.comment)
        files = find_files(source, self.format, layout, max_file_bytes, block_bytes, follow=follow)
        times = Times(self.time_unit, self.tick_unit)
        reader = Reader(files, schema, times, checks or Checks())
        bipartite = self.bipartite
        if bipartite is None:
            bipartite = any(decoder.bipartite for decoder in files.decoders)
        name = str(source) if isinstance(source, str | os.PathLike) else files.names[0]
        return name, reader, bipartite


def open_stream(
    source: Any, *, sort: bool = False, ids: NodeIds | None = None, **options: Any
) -> EventSource:
    """Return the events of a file, a folder, or a table in memory as one ordered stream.

    Files are CSV, TSV, JSON lines (each also compressed: `.gz`, `.zst`, `.bz2`), Parquet, Arrow IPC
    and Feather. JODIE's CSV files are read as they are published: their columns are called src,
    dst, t, label, f0, f1, ..., the stream is bipartite and its features are read. A folder is read
    file after file in order of name, where digits count as numbers (`part-2` before `part-10`);
    names that start with `.` or `_` are skipped. Tables are pyarrow tables and batches, data frames
    that offer the Arrow C stream (pandas, polars, also lazy ones), dicts of columns (NumPy, torch,
    lists), tuples of them (src, dst, t, and perhaps x), iterables of dicts, one a row, and
    `TemporalData` of PyTorch Geometric, whose features are `features="msg"`.

    As they are published: DyGLib's `ml_NAME.csv` with the features in `ml_NAME.npy`, SNAP's `.txt`
    (src, dst, t), Network Repository's `.edges` and KONECT's `out.NAME` (src, dst, weight, t)
    without headers; and `.npz` and
    `.pt`, arrays and tensors by name, in which nothing is ever unpickled or run.

    Args:
        source: A path, a list of paths, or a table; "-" is stdin, CSV unless `format` says another.
        sort: Read everything first and sort it by time, ties in file order. Without it times must
            not decrease.
        ids: A map that has ids already, or None for a new one. `bipartite` is then the map's.
        **options: Fields of `StreamOptions`: the columns, their units, the format, ...

    Returns:
        A source that can be iterated again and again, in bounded memory unless `sort`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        StreamError: If a file is of no known format, or lacks a column. Iterating raises it at the
            first row that is no event, naming file and line (or row, from 0).
        TypeError: If there is no such option.
        ValueError: If an option is out of its choices.

    Example:
        >>> payments = {"src": ["ann", "bob"], "dst": ["shop", "shop"], "t": [5, 7]}
        >>> source = tg.open_stream(payments, time_unit="s")
        >>> [batch.t.tolist() for batch in source], source.ids.decode(torch.tensor([1]))
        ([[5, 7]], ['shop'])
    """
    wanted = StreamOptions(**options)
    name, reader, bipartite = wanted.reader_of(source)
    stream = EventSource(name, reader, NodeIds(bipartite) if ids is None else ids, sort)
    path = str(source) if isinstance(source, str | os.PathLike) else ""
    stream.origin = {"path": path, "sort": sort, **asdict(wanted)} if path else {}
    return stream


def open_files(
    source: Any,
    *,
    event_id: str | None = None,
    checks: Checks | None = None,
    max_file_bytes: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    follow: bool = False,
    **options: Any,
) -> FileSource:
    """Return a file, a folder or a table as a source that can resume at any position.

    Rows that are no events do not end it: each comes as a bad row with its place (the byte in the
    text, or the row) and its bytes. Times may come in any order; `Ingest` sorts them.

    Args:
        source: As for `open_stream`.
        event_id: Name of a column of texts or integers by which events that come twice are found,
            if `OrderConfig.dedup_window` says so; None reads none.
        checks: Limits on the values; None for those of `Checks()`.
        max_file_bytes: How many bytes of text a compressed file may hold; None for 1 GiB, or 200
            times its own size where that is more.
        block_bytes: How much of a text file to parse at a time. It does not change what is read.
        follow: Read on as the file grows by whole lines, or as whole files are moved to the folder,
            and never end. What there is to be found out, the first row alone shows.
        **options: Fields of `StreamOptions`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        StreamError: If a file is of no known format, or lacks a column.
        TypeError: If there is no such option.
        ValueError: If an option is out of its choices.
    """
    name, reader, bipartite = StreamOptions(**options).reader_of(
        source,
        event_id=event_id,
        checks=checks,
        max_file_bytes=max_file_bytes,
        block_bytes=block_bytes,
        follow=follow,
    )
    return FileSource(name, reader, NodeIds(bipartite))
