"""Reads files or a table in sequence, from any position; the file source."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, timedelta
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import IO, Any, TypeGuard

import numpy as np

from tgflow.base.iso_time import formats_of, iso_seconds
from tgflow.base.units import exact_decimal, parse_bytes
from tgflow.graph.id_columns import MADE_FLOATS, first_missing
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import SourceExpired, SourceMismatch, StreamError, shown
from tgflow.streams.files.columnar import BATCH_ROWS, ColumnarDecoder, as_table, table_decoder
from tgflow.streams.files.csv import SNAP, CsvDecoder, names_of
from tgflow.streams.files.decoder import SAMPLES, Decoder
from tgflow.streams.files.formats import EXTENSIONS, FORMATS, decoder_for, file_path, format_of
from tgflow.streams.files.text import BLOCK_BYTES, COMPRESSION, OpenQuote, TextDecoder
from tgflow.streams.options import StreamOptions
from tgflow.streams.prefetch import Ended, Prefetcher
from tgflow.streams.rows.row_batch import (
    Fault,
    PartitionedSource,
    Position,
    RowBatch,
    warn_of_first_time,
)
from tgflow.streams.rows.schema import ID_KINDS, OPTIONAL, Checks, Columns, IdKind, Times, listed
from tgflow.streams.rows.validate import (
    BOOLEANS,
    MISSING,
    MOST,
    LabelCoding,
    RowSchema,
    TextClasses,
    exact_ticks,
    first_classes,
    first_id_kind,
    saved_classes,
    usual_value,
)

_log = logging.getLogger(__name__)

STDIN = "-"
PARTITION = 0
DEPTH = 2
POLL_SECONDS = 0.2
"""Seconds between two checks of a file or folder that is followed."""
CHUNK_BYTES = 1 << 16
NOTICE_SECONDS = 2.0
"""Seconds without a row after which the wait for one is reported."""
ENOUGH_LINES = 2
"""Minimum lines that are not comments: a header and a row, or two rows."""

_SEPARATORS = {";": ";", "\t": "tab", "|": "|", ",": ",", " ": "space"}
"""Common separators, and their names in settings."""

_USUAL_NAMES = {
    "src": ("src", "source", "user", "user_id", "account", "account_id", "customer", "customer_id",
            "sender", "from", "head", "u"),
    "dst": ("dst", "destination", "target", "item", "item_id", "shop", "shop_id", "merchant",
            "merchant_id", "product", "receiver", "to", "tail", "v"),
    "t": ("t", "time", "timestamp", "ts", "date", "datetime", "at", "created_at", "unixtime"),
}  # fmt: skip
"""Usual names of columns in lower case, by role."""

OpenFile = Callable[[Path], Decoder]


class FileTail:
    """A file or folder that others may write during the read."""

    def __init__(self) -> None:
        self.is_waiting = False
        """Whether everything there is has been read."""

    @property
    def is_complete(self) -> bool:
        """Whether all data is available; nothing more will be added."""
        return False

    def wait(self, stop: Event) -> bool:
        """Wait for the next check; return False if `stop` is set."""
        self.is_waiting = True
        is_stopped = stop.wait(POLL_SECONDS)
        self.is_waiting = False
        return not is_stopped

    def fill(self, size: int) -> None:
        """Wait until the earlier content, `size` bytes, is available again."""


class Spool(FileTail):
    """Copies a pipe to a temporary file in a thread, so that it can be reread from any position.

    The file is deleted when the process ends.
    """

    def __init__(self, pipe: IO[bytes] | Path, name: str) -> None:
        super().__init__()
        self._folder = TemporaryDirectory(prefix="tgflow-")
        self.path = Path(self._folder.name) / name
        self.path.touch()
        self.ended = Event()
        self._error: Exception | None = None
        threading.Thread(target=self._copy, args=(pipe,), name="tgflow-pipe", daemon=True).start()

    @property
    def is_complete(self) -> bool:
        """Whether the pipe was copied to its end; raises the error of a failed copy."""
        if self.ended.is_set() and self._error is not None:
            raise self._error
        return self.ended.is_set()

    def wait(self, stop: Event) -> bool:
        self.ended.wait(POLL_SECONDS / 4)
        return not stop.is_set()

    def fill(self, size: int) -> None:
        while self.path.stat().st_size < size and not self.ended.wait(POLL_SECONDS / 4):
            pass

    def _copy(self, pipe: IO[bytes] | Path) -> None:
        try:
            if isinstance(pipe, Path):
                pipe = pipe.open("rb")  # which blocks until there is a writer
            with self.path.open("wb", buffering=0) as file:
                while chunk := pipe.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                    file.write(chunk)
        except Exception as error:  # raised again by the reader of the file
            self._error = error
        self.ended.set()


class Files:
    """Files (or one table) in read order."""

    def __init__(
        self,
        decoders: Sequence[Decoder],
        names: Sequence[str],
        growth: FileTail | None = None,
        folder: Path | None = None,
        open_file: OpenFile | None = None,
    ) -> None:
        self.decoders = list(decoders)
        self.names = list(names)
        self.growth = growth
        self._folder, self._open_file = folder, open_file

    def is_complete(self) -> bool:
        """Return whether no more data will come; then a last line without line end is read too."""
        if self.growth is None or not self.growth.is_complete:
            return self.growth is None
        last = self.decoders[-1]
        if isinstance(last, TextDecoder):
            last.whole_lines = False
        return True

    def following(self, current: int, is_complete: bool, is_idle: bool, stop: Event) -> int | None:
        """Return the index of the file to read after `current`, which may be itself; None: none.

        `is_complete` was taken before the read; if the read was idle, this waits until `stop`.
        """
        while True:
            if current + 1 == len(self.decoders) and self._folder is not None and self._open_file:
                for path in _paths_in(self._folder, after=self.names[-1]):
                    self.decoders.append(self._open_file(path))
                    self.names.append(path.name)
            if current + 1 < len(self.decoders):
                return current + 1
            if is_complete or self.growth is None:
                return None
            if is_idle and not self.growth.wait(stop):
                return None
            is_idle = True
            if self.decoders[current].is_growing:
                return current

    def find(self, position: Position) -> int:
        """Return the index of a position's file; in a folder files are found by name."""
        name, number = str(position["name"]), int(position["file"] or 0)
        if self._folder is None:
            if number >= len(self.names):
                text = f"file {number + 1}, {name!r}, no longer exists; it had been read in part"
                raise SourceExpired(self.names[0], "schema", text)
            if self.names[number] != name:
                text = f"file {number + 1} was {name!r}; give the same files in their order"
                raise SourceMismatch(self.names[number], "schema", text)
            return number
        if name not in self.names:
            text = f"{name!r} is gone before it was read completely; put it back"
            raise SourceExpired(str(self._folder), "schema", text)
        if (found := self.names.index(name)) > number:
            text = f"{found} files sort before {name!r}, but {number} did when it was read; give "
            text += "new files names that sort after the old ones"
            raise SourceMismatch(str(self._folder), "schema", text)
        return found

    def progress(self, current: int) -> float:
        """Return the share of all files read so far while reading `current`, 0 to 1."""
        total = sum(decoder.size for decoder in self.decoders)
        done = sum(decoder.size for decoder in self.decoders[:current])
        done += round(self.decoders[current].size * self.decoders[current].progress())
        return done / total if total else 1.0


def paths_of(source: str) -> list[Path]:
    """Return the file at a path, or the files of the folder there, in their order."""
    path = file_path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {source!r}")
    return _paths_in(path) if path.is_dir() else [path]


def _paths_in(folder: Path, after: str = "") -> list[Path]:
    last = _natural(after)
    paths = (p for p in folder.iterdir() if p.name[0] not in "._" and _natural(p.name) > last)
    return sorted((p for p in paths if p.is_file()), key=lambda path: _natural(path.name))


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a sort key of alternating text and numbers: `part-2` sorts before `part-10`."""
    texts, numbers = re.split("[0-9]+", name), re.findall("[0-9]+", name)
    return list(zip(texts, map(int, [*numbers, 0]), strict=True))


def find_files(
    source: Any, options: StreamOptions, block_bytes: int, *, follow: bool = False
) -> Files:
    """Return the files of a source; the arguments are those of `Reader`."""
    names_of(options)
    limit = options.max_file_bytes
    most = None if limit is None else parse_bytes(limit)
    open_file = partial(decoder_for, layout=options, max_bytes=most, block_bytes=block_bytes)
    comments = SNAP.comments + ((options.comment.encode(),) if options.comment else ())
    is_path = _is_path(source)
    if is_path and is_pipe(source):
        return _of_pipe(str(source), open_file, options.format, comments)
    if is_path or (isinstance(source, Sequence) and source and all(map(_is_path, source))):
        paths = paths_of(str(source)) if is_path else [*map(file_path, source)]
        folder = Path(source) if is_path and Path(source).is_dir() else None
        if not paths:
            raise StreamError(str(folder), "schema", "the folder holds no files")
        last, growth = paths[-1], FileTail()
        if follow and folder is None:
            kind = format_of(last)
            is_text = last.suffix not in COMPRESSION and (kind is None or FORMATS[kind].is_text)
            if not is_text:
                text = "follow=True is for text files that are not compressed, and for folders "
                raise ValueError(f"{text}that files are moved to; {last} is neither")
            _wait_for_rows(last, growth, comments, open_file)
        decoders, names = [*map(open_file, paths)], [path.name for path in paths]
        if follow and folder is None and isinstance(decoders[-1], TextDecoder):
            decoders[-1].let_grow()
        return Files(decoders, names, growth if follow else None, folder, open_file)
    if (table := as_table(source)) is None:
        text = f"cannot read events from {type(source).__name__}; pass a path "
        text += f"({', '.join(FORMATS)}), a pyarrow table, a data frame with __arrow_c_stream__, a "
        raise TypeError(f"{text}dict or tuple of columns, or an iterable of dicts")
    if follow:
        raise ValueError("follow=True is for files and folders; a table does not grow")
    features = ("x",) if isinstance(source, tuple) and len(source) == 4 else ()
    return Files([table_decoder(table, features)], ["table"])


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Return whether a stream is stdin or a named pipe, which can be opened only once."""
    return str(path) == STDIN or Path(path).is_fifo()


def _is_path(source: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(source, str | os.PathLike)


def _of_pipe(
    source: str, open_file: OpenFile, format: str | None, comments: tuple[bytes, ...]
) -> Files:
    """Return the files for stdin or a named pipe, as CSV if neither format nor name is known."""
    is_stdin = source == STDIN
    name = "stdin" if is_stdin else Path(source).name
    ending = next((end for end, kind in EXTENSIONS.items() if kind == format), ".csv")
    known = format_of(Path(name))
    pipe = sys.stdin.buffer if is_stdin else Path(source)
    spool = Spool(pipe, name if known else name + ending)
    format = format or known
    if format in FORMATS and not FORMATS[format].is_text:
        comments = (b"",)  # its lines are no rows: wait for the end
    _wait_for_rows(spool.path, spool, comments, open_file)
    decoder = open_file(spool.path)
    decoder.first_place = decoder.first_place.replace(decoder.name, name)
    decoder.name = name
    if isinstance(decoder, TextDecoder):
        decoder.let_grow()
    return Files([decoder], [STDIN if is_stdin else name], spool)


def _wait_for_rows(
    path: Path, growth: FileTail, comments: tuple[bytes, ...], open_file: OpenFile
) -> None:
    """Wait until a growing file holds a header and a row, or is complete."""
    forever, notice = Event(), time.monotonic() + NOTICE_SECONDS
    while not growth.is_complete and growth.wait(forever):
        with path.open("rb") as file:
            lines = (line for line in file if line.endswith(b"\n"))
            rows = (line for line in lines if not line.startswith(comments))
            has_lines = sum(1 for _ in islice(rows, ENOUGH_LINES)) == ENOUGH_LINES
        try:
            decoder = open_file(path) if has_lines else None
            if isinstance(decoder, TextDecoder):  # below its header, if any
                decoder.let_grow()
                below = decoder.head()[decoder.num_header_lines :]
                has_lines = any(not row.startswith(comments) for row in below)
        except OpenQuote:
            if path.stat().st_size > BLOCK_BYTES:
                raise
            has_lines = False
        if has_lines:
            return
        if time.monotonic() > notice:
            notice = math.inf
            _log.warning("%s: waiting for a writer, a header and a row", path.name)


class Reader:
    """The events of files or of a table, in sequence, from any position.

    The arguments are those of `FileSource`.
    """

    def __init__(
        self,
        source: Any,
        *,
        ids: NodeIds | None = None,
        bipartite: bool | None = None,
        checks: Checks | None = None,
        block_bytes: int = BLOCK_BYTES,
        follow: bool = False,
        event_id: str | None = None,
        label_time: str | None = None,
        labels_later: bool = False,
        part: int = 0,
        **options: Any,
    ) -> None:
        given = StreamOptions(**options)
        self._files = files = find_files(source, given, block_bytes, follow=follow)
        self._event_id, self._label_time, self._labels_later = event_id, label_time, labels_later
        self.name = str(source) if isinstance(source, str | os.PathLike) else files.names[0]
        self._options, found = _with_usual_names(files, given, event_id)
        self.columns: Mapping[str, str] = found
        """Columns that were found by their usual names, by role: "src", "dst", "t"."""
        self._checks, self._part = checks or Checks(), part
        times = Times(given.time_unit, given.tick_unit, given.time_format)
        self.id_kind: IdKind = given.id_kind or "int"
        self.id_note = f"ids are {ID_KINDS[self.id_kind]}"
        """The kind of the ids, and why: that of the first `SAMPLES` rows, or as given."""
        self._widths: tuple[int, ...] = ()
        self.x_dim = 0
        """Width of the edge features."""
        self.features: Mapping[str, int] = {}
        """Widths of the feature columns by name, in order, categorical ones last."""
        self._time, _ = times.scale(())
        self.notes: list[str] = []
        """Settings detected from the first rows, one sentence each."""
        if self.columns:
            usual = ", ".join(f"{role}={name!r}" for role, name in self.columns.items())
            self.notes.append(f"columns by their usual names: {usual}")
        self.refusal: StreamError | None = None
        """Error of the first row, if none of the first rows can be read."""
        self._classes: dict[str, TextClasses] = {}
        self._first_classes: dict[str, list[str]] = {}
        self._coding = LabelCoding(given) if given.has_coded_labels else None
        self._look_ahead(times)
        counts = [decoder.num_events for decoder in files.decoders]
        known = [count for count in counts if count is not None]
        self.num_events = sum(known) if len(known) == len(counts) else None
        self.unit, self.time_unit = self._time.tick, self._time.unit
        """Unit of a tick, and of numeric times in the files."""
        if bipartite is None:
            bipartite = any(decoder.bipartite for decoder in files.decoders)
        self.ids = NodeIds(bipartite) if ids is None else ids
        self._has_checked_time = not isinstance(files.growth, Spool)

    def _read(
        self, start: Position | None = None, stop: Event | None = None
    ) -> Generator[tuple[RowBatch, float]]:
        """Return the rows of all files from `start` on, each with the share of all read so far."""
        saved = {} if start is None else saved_classes(start)
        if start is not None:  # columns of texts are those of the sources before
            both, known = [*BOOLEANS], self._first_classes
            self._first_classes = {} if self._part else known
            for role in MOST.keys() & saved.keys():
                first = known.get(role, both if saved[role][:2] == both else [])
                self._first_classes |= {role: first}
        if start is not None and (start.get("part", 0) != self._part or "name" not in start):
            start = None  # it is in the source before
        current = 0 if start is None else self._files.find(start)
        self._classes = {
            role: TextClasses(role, first, saved.get(role))
            for role, first in self._first_classes.items()
        }
        for name in self._categorical:
            most = self._options.max_categories
            self._classes[name] = TextClasses(name, (), saved.get(name), most)
        if start is not None and self._files.growth is not None:
            self._files.growth.fill(int(start["size"] or 0))
        is_complete = self._files.is_complete()
        rows = self._rows(current, start)
        return self._all(current, rows, start, is_complete, stop or Event())

    def count_labels(self) -> dict[str, int]:
        """Return the number of rows with each known label, as text, in order of appearance.

        Reads everything; `unknown_label` must be set, if only to nothing.
        """
        own, places, counts = self._coding, dict[str, int](), Counter[int]()
        self._coding = LabelCoding(self._options, places)
        try:
            for rows, _ in self._read():
                assert rows.events.label is not None
                found, nums = np.unique(rows.events.label, return_counts=True)
                counts.update(dict(zip(found.tolist(), nums.tolist(), strict=True)))
        finally:
            self._coding = own
        return {text: counts[place] for text, place in places.items() if place in counts}

    def _all(
        self,
        current: int,
        rows: Iterator[RowBatch],
        position: Position | None,
        is_complete: bool,
        stop: Event,
    ) -> Generator[tuple[RowBatch, float]]:
        """Yield the rows of the `current` file from `position` on, then those of later files."""
        while True:
            is_idle = True
            for batch in rows:
                position = {"file": current, "name": self._files.names[current], **batch.position}
                if self._part:
                    position["part"] = self._part
                if self._classes:
                    names = {role: found.names for role, found in self._classes.items()}
                    position["classes"] = json.dumps(names, ensure_ascii=False)
                is_idle = False
                if not self._has_checked_time:
                    self._has_checked_time = warn_of_first_time(_log, [batch], self.unit)
                yield replace(batch, position=position), self._files.progress(current)
            if (found := self._files.following(current, is_complete, is_idle, stop)) is None:
                return
            position = position if found == current else None
            current, is_complete = found, self._files.is_complete()
            rows = self._rows(current, position)

    def _rows(self, current: int, start: Position | None) -> Iterator[RowBatch]:
        decoder = self._files.decoders[current]
        if (names := decoder.names()) is None:
            return iter(())
        columns = self._columns(decoder, names)
        texts = columns.texts | {getattr(columns, role) for role in self._first_classes}
        columns = replace(columns, texts=texts)
        schema = RowSchema(
            columns,
            self.id_kind,
            self._time,
            self._widths,
            self._checks,
            self._classes,
            self._coding,
        )
        return decoder.read(schema, start)

    def _columns(self, decoder: Decoder, names: Sequence[str]) -> Columns:
        where, options = decoder.name, self._options
        roles = {role: getattr(options, role) for role in ("src", "dst", "t", *OPTIONAL)}
        if self._labels_later and options.label not in names:
            options, roles["label"] = replace(options, label=None), None
        roles |= {"event_id": self._event_id, "label_time": self._label_time}
        wanted = {k: name for k, name in roles.items() if name}
        is_text = isinstance(decoder, CsvDecoder)
        _require(where, names, wanted, is_text)
        features = options.features
        if isinstance(features, Sequence) and len(features) == 1 and features[0].endswith("*"):
            features = features[0]
        if features is None:
            features = decoder.default_features()
        if isinstance(features, str):
            prefix, used = features.removesuffix("*"), set(wanted.values())
            features = [name for name in names if name.startswith(prefix) and name not in used]
            if not features:
                text = f"no feature column starts with {prefix!r}; the columns are {listed(names)}"
                raise StreamError(where, "schema", text)
        categorical = self._categorical
        counts = Counter(names)
        for role, given in (("features", features), ("categorical", categorical)):
            for name in given:
                if counts[name] != 1:
                    _require(where, names, {role: name}, is_text)
        return Columns.of(
            options,
            features=tuple(name for name in features if name not in categorical),
            categorical=categorical,
            event_id=self._event_id,
            label_time=self._label_time,
            fill_missing=options.fill_missing,
        )

    @property
    def _categorical(self) -> tuple[str, ...]:
        given = self._options.categorical or ()
        names = dict.fromkeys([given] if isinstance(given, str) else given)
        if clash := [name for name in names if name in MOST]:
            raise ValueError(f"categorical={clash[0]!r} is the name of a role; rename the column")
        return tuple(names)

    def _look_ahead(self, times: Times) -> None:
        """Detect feature widths and time unit from the first rows, the id type from the first."""
        for decoder in self._files.decoders:
            if (names := decoder.names()) is None:
                continue
            columns = self._columns(decoder, names)
            samples = decoder.samples(columns)
            values = [usual_value(each.get(name) for each in samples) for name in columns.features]
            self._widths = tuple(len(v) if isinstance(v, list) else 1 for v in values)
            num_slots = self._options.max_categories + 1
            widths = [*self._widths, *(num_slots for _ in columns.categorical)]
            self.x_dim, names = sum(widths), [*columns.features, *columns.categorical]
            self.features = dict(zip(names, widths, strict=True))
            if not samples:
                continue
            self.refusal = _text_feature(decoder, columns, samples)
            found = [*decoder.notes()]
            self._time, note = times.scale(row.get(columns.t) for row in samples)
            needed = [columns.src, columns.dst, columns.t]
            needed += columns.features if columns.fill_missing is None else ()
            whole = [
                row
                for row in samples[:SAMPLES]
                if all(row.get(name) is not None for name in needed)
                and not self._time_fault(columns.t, row[columns.t])
            ]
            ends = [(name, row.get(name)) for row in whole or samples for name in needed[:2]]
            if self._options.id_kind != "string" and isinstance(decoder, ColumnarDecoder):
                for name in dict.fromkeys(name for name, end in ends if isinstance(end, float)):
                    parts = (each.column(0) for each in decoder.batches([name], BATCH_ROWS))
                    if (row := first_missing(parts)) is not None:
                        where = f"{decoder.name}, row {row}"
                        raise StreamError(where, "null", f"{name} {MADE_FLOATS}")
            if self._options.id_kind is None:
                is_whole = len(whole) == len(samples[:SAMPLES])
                self.id_kind, reason = first_id_kind(
                    decoder.first_place if is_whole else decoder.name, ends
                )
                self.id_note = f"ids are {ID_KINDS[self.id_kind]}{reason}"
            spaced = [v for _, v in ends if isinstance(v, str) and v != v.strip(" ")]
            if spaced and self.id_kind == "string":
                self.id_note += f"; spaces around ids are kept, as in {shown(spaced[0])}"
            if not decoder.is_growing:
                self.refusal = self.refusal or self._no_time(decoder, columns, samples)
            found += [] if note is None else [note]
            for role in MOST:
                name = getattr(columns, role)
                if (
                    name
                    and name not in columns.texts
                    and (texts := first_classes(each.get(name) for each in samples)) is not None
                ):
                    self._first_classes[role] = texts
                    found.append(f"{name}: texts are classes, numbered as they appear")
            self.notes += [f"{decoder.name}: {each}" for each in found]
            return

    def _time_fault(self, name: str, value: object) -> Fault | None:
        is_moment = isinstance(value, date | timedelta)
        found = 0 if is_moment else exact_ticks(name, value, self._time)
        return None if isinstance(found, int) else found

    def _no_time(
        self, decoder: Decoder, columns: Columns, samples: Sequence[Mapping[str, Any]]
    ) -> StreamError | None:
        """Return an error of the first row if the samples' times are texts that cannot be read."""
        values = [row.get(columns.t) for row in samples]
        there = [value for value in values if value is not None and value != ""]
        if self._time.format is not None:
            there = [str(value) if isinstance(value, int) else value for value in there]
        texts = [value for value in there if isinstance(value, str)]
        faults = (self._time_fault(columns.t, value) for value in there)
        first = [fault for fault in faults if fault is not None]
        if not texts or len(first) < len(there) or first[0][0] != "time_type":
            return None
        code, text = first[0]
        if formats := formats_of(texts)[:2]:
            text += f"; pass {' or '.join(f'time_format={each!r}' for each in formats)}"
        elif self._time.format is None:
            text += "; name its format, such as time_format='%m/%d/%Y', or another column: t=..."
        return StreamError(decoder.first_place, code, text)


def _text_feature(
    decoder: Decoder, columns: Columns, samples: Sequence[Mapping[str, Any]]
) -> StreamError | None:
    """Return an error of the first row if all samples of a feature are texts."""
    for name in columns.features:
        there = [row.get(name) for row in samples if row.get(name) not in (None, *MISSING)]
        texts = [v for v in there if isinstance(v, str) and v.strip().lower() not in BOOLEANS]
        if there and len(texts) == len(there) and not any(map(exact_decimal, texts)):
            text = f"{name} is {shown(there[0])}, expected a number; pass categorical={name!r} to "
            text += "encode its categories, or leave it out of the features"
            return StreamError(decoder.first_place, "type", text)
    return None


def _require(where: str, names: Sequence[str], wanted: Mapping[str, str], is_text: bool) -> None:
    """Raise StreamError unless there is one column of each wanted name, given by role."""
    if not names:
        raise StreamError(where, "schema", "there is no row among its first lines")
    missing = {role: name for role, name in wanted.items() if names.count(name) != 1}
    if not missing:
        return
    role, name = next(iter(missing.items()))
    if count := names.count(name):
        text = f"{count} columns are named {name!r}"
        if is_text:
            earlier = [names[:i].count(each) for i, each in enumerate(names)]
            apart = [each + f".{n}" * (n > 0) for each, n in zip(names, earlier, strict=True)]
            apart = [each.replace(",", "").replace("'", "") or "_" for each in apart]
            text += f"; give them names of their own: header=True columns='{','.join(apart)}'"
            raise StreamError(where, "schema", f"{text}, and choose with {role}=...")
    else:
        absent = [repr(each) for each in dict.fromkeys(missing.values()) if each not in names]
        text = f"there is no column {' or '.join(absent)}"
    roles = " ".join(f"{each}=..." for each in ([role] if count else missing))
    text += f"; the columns are {listed(names)}: choose with {roles}"
    gone = {role: name for role, name in missing.items() if name not in names}
    meant = [f"{k}={v!r}" for k, name in gone.items() for v in _meant(names, k, name)]
    if meant:
        text += f"; did you mean {' '.join(meant)}?"
    values = names
    if len(names) == 1:
        separator = max(_SEPARATORS, key=names[0].count)
        if names[0].count(separator) >= 2:
            values = names[0].split(separator)
            text += f"; or is there another separator? sep={_SEPARATORS[separator]!r}"
    is_row = any(exact_decimal(x) is not None or iso_seconds(x) is not None for x in values)
    if not count and is_row:
        text += "; or is the first line a row? header=False columns='src,dst,t' reads it as one"
    raise StreamError(where, "schema", text)


def _with_usual_names(
    files: Files, options: StreamOptions, event_id: str | None
) -> tuple[StreamOptions, dict[str, str]]:
    """Return the options with the columns that have usual names, and these columns by role."""
    found, features = dict[str, str](), options.features or ()
    used = {*([features] if isinstance(features, str) else features), event_id}
    used |= {getattr(options, role) for role in ("src", "dst", "t", *OPTIONAL)}
    there = (names for each in files.decoders if (names := each.names()) is not None)
    if (names := next(there, None)) is not None:
        for role, known in _USUAL_NAMES.items():
            usual = [name for name in names if name not in used and name.strip().lower() in known]
            if getattr(options, role) == role and role not in names and len(usual) == 1:
                found[role] = usual[0]
    return replace(options, **found), found  # type: ignore[arg-type]


def _meant(names: Sequence[str], role: str, name: str) -> Sequence[str]:
    """Return the columns that may be meant by a missing `name`: one, or all of a list in it."""
    if names and set(parts := name.split(",")) <= set(names):
        return parts
    known = _USUAL_NAMES.get(role, ())
    usual = [each for each in names if get_close_matches(each.strip().lower(), known, 1, 0.8)]
    return [*get_close_matches(name, names, 1, 0.8), *usual][:1]


class FileSource(Reader, PartitionedSource):
    """Source of files in sequence, or of a table, as a single partition 0, from any position.

    Bad rows do not end it: each is reported with its place (the byte in the text, or the row) and
    its bytes. Times may come in any order; `Ingest` sorts them. Files are read in a background
    thread, at most three blocks ahead.
    A position holds the file and the byte (or row) in it, with an anchor: the file's size and a
    digest of the data before it. Resume also works after lines were appended, or after files that
    sort after the last one were added to a folder.

    Args:
        source: As for `open_stream`.
        ids: An existing id map; None: a new one.
        bipartite: As for `open_stream`.
        checks: Limits on the values; None for those of `Checks()`.
        block_bytes: Bytes of a text file parsed at a time; does not change the result.
        follow: Keep reading as the file grows by whole lines, or as whole files are moved to the
            folder, and never end. Column detection then uses the first row alone.
        event_id: Name of a text or integer column used to find repeated events, if
            `OrderConfig.dedup_window` is set; None reads none.
        label_time: Name of the column of a label's time, in a file of labels.
        labels_later: Whether files may lack the column of labels: none is known then.
        part: Number of sources that a run has read before this one.
        **options: Fields of `StreamOptions`.

    Raises:
        FileNotFoundError: If the file or folder does not exist.
        StreamError: If a file has an unknown format, or lacks a column.
        TypeError: If an option is unknown.
        ValueError: If an option has an invalid value.
    """

    _ahead: Prefetcher[tuple[RowBatch, float]] | None = None
    _progress = 0.0
    _has_ended = False
    _stop = Event()

    def start(self, positions: Mapping[int, Position]) -> None:
        self.close()
        self._stop = Event()
        self._has_checked_time |= bool(positions)
        rows = self._read(positions.get(PARTITION), self._stop)
        self._progress, self._has_ended = 0.0, False
        self._ahead = Prefetcher(rows, DEPTH)

    def partitions(self) -> Sequence[int]:
        return [PARTITION]

    def poll(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        if PARTITION not in wanted or self._has_ended or self._ahead is None:
            return []
        try:
            read = self._ahead.take(timeout)
        except Ended:
            self._has_ended, self._progress = True, 1.0
            return []
        if read is None:
            return []
        rows, self._progress = read
        return [rows]

    def ended(self) -> Set[int]:
        return {PARTITION} if self._has_ended else set()

    def caught_up(self) -> Set[int]:
        """Return partition 0 if all that a followed file or folder has now was polled."""
        growth, ahead = self._files.growth, self._ahead
        is_waiting = growth is not None and growth.is_waiting
        return {PARTITION} if is_waiting and ahead and ahead.is_empty else frozenset()

    def progress(self) -> float:
        return self._progress

    def close(self) -> None:
        self._stop.set()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
