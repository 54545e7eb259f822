"""Rows of files (or a table), one file after another, validated: what all readers share."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

from tgflow.streams.errors import StreamError, shown
from tgflow.streams.files.file_list import Files
from tgflow.streams.rows.classes import LabelClasses, first_classes
from tgflow.streams.rows.columns import AS_TEXT
from tgflow.streams.rows.features import usual_value
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.row_batch import Position, RowBatch
from tgflow.streams.rows.schema import Columns, IdKind, Schema
from tgflow.streams.rows.times import Times
from tgflow.streams.rows.validate import RowSchema


class Reader:
    """Reads files in order, from any place on.

    Args:
        files: The files.
        schema: Which columns make an event.
        times: In which units their times are.
        checks: Limits on the values.

    Raises:
        StreamError: If the first file lacks a column, or its first ids are neither integers nor
            strings.
    """

    def __init__(self, files: Files, schema: Schema, times: Times, checks: Checks) -> None:
        self._files = files
        self._schema = schema
        self._checks = checks
        self.id_kind: IdKind = schema.id_kind or "int"
        self.widths: tuple[int, ...] = ()
        self._features: tuple[str, ...] = ()
        self.time, _ = times.scale(())
        self.notes: list[str] = []
        """What the first rows have shown that nobody said, in sentences."""
        self.classes: LabelClasses | None = None
        """What labels that are texts have become up to where the latest reading is."""
        self._first_classes: list[str] | None = None
        self._times = times
        self._look_ahead()
        counts = [decoder.num_events for decoder in files.decoders]
        known = [count for count in counts if count is not None]
        self.num_events = sum(known) if len(known) == len(counts) else None

    def read(
        self, start: Position | None = None, stop: Event | None = None
    ) -> Generator[tuple[RowBatch, float]]:
        """Return the rows of all files from `start` on; of files that grow until `stop` is set.

        With each batch comes which share of all files has been read with it.

        Raises:
            SourceExpired: If the file of `start` is gone.
            SourceTruncated: If it ends before `start`.
            SourceMismatch: If it is not the file that was read up to `start`.
        """
        current = 0 if start is None else self._files.find(start)
        if self._first_classes is not None:
            saved = "" if start is None else str(start.get("classes") or "")
            self.classes = LabelClasses.load(saved, self._first_classes)
        stop = Event() if stop is None else stop
        if start is not None and self._files.growth is not None:
            self._files.growth.fill(int(start["size"] or 0))
        is_complete = self._files.is_complete()
        first = self._rows(current, start)
        return self._all(current, first, start, is_complete, stop)

    def _all(
        self,
        current: int,
        rows: Iterator[tuple[RowBatch, float]],
        position: Position | None,
        is_complete: bool,
        stop: Event,
    ) -> Generator[tuple[RowBatch, float]]:
        """Yield the rows of the `current` file from `position` on, and of all that come."""
        while True:
            is_idle = True
            for batch, share in rows:
                position, is_idle = batch.position, False
                yield batch, share
            found = self._files.following(current, is_complete, is_idle, stop)
            if found is None:
                return
            position = position if found == current else None
            current, is_complete = found, self._files.is_complete()
            rows = self._rows(current, position)

    def _rows(self, current: int, start: Position | None) -> Iterator[tuple[RowBatch, float]]:
        decoder = self._files.decoders[current]
        columns = self._schema.select(decoder)
        if columns is None:
            return iter(())
        columns = replace(columns, has_classes=self.classes is not None)
        schema = RowSchema(
            columns, self.id_kind, self.time, self.widths, self._checks, self.classes
        )
        return (self._placed(rows, current) for rows in decoder.read(schema, start))

    @property
    def feature_names(self) -> list[str]:
        """What the columns of the features are called: `f0`, or `x[1]` in a list."""
        named = zip(self._features, self.widths, strict=True)
        return [n if width == 1 else f"{n}[{i}]" for n, width in named for i in range(width)]

    def _placed(self, rows: RowBatch, current: int) -> tuple[RowBatch, float]:
        position = {**self._files.place(current), **rows.position}
        if self.classes is not None:
            position["classes"] = self.classes.save()
        return replace(rows, position=position), self._files.progress(current)

    def _look_ahead(self) -> None:
        """Learn the width of features and the unit of times from the first rows, ids from one."""
        for decoder in self._files.decoders:
            columns = self._schema.select(decoder)
            if columns is None:
                continue
            self._features, self.widths = columns.features, (1,) * len(columns.features)
            samples = decoder.samples(columns)
            if samples:
                self._learn(samples, columns, decoder.first_place)
                self.time, note = self._times.scale(row.get(columns.t) for row in samples)
                found = [*decoder.notes(), *([] if note is None else [note])]
                if columns.label is not None:
                    self._first_classes = first_classes(row.get(columns.label) for row in samples)
                if self._first_classes is not None:
                    found.append(f"{columns.label}: texts are classes, numbered as they appear")
                self.notes += [f"{decoder.name}: {each}" for each in found]
                return

    def _learn(
        self, samples: Sequence[Mapping[str, Any]], columns: Columns, first_place: str
    ) -> None:
        both = columns.src, columns.dst
        wanted = [*both, *(columns.features if columns.fill_missing is None else ())]
        whole = [row for row in samples if all(row.get(name) is not None for name in wanted)]
        good = [row for row in whole if all(_is_id(row[name]) for name in both)]
        row = [*good, *whole, *samples][0]
        values = [usual_value(each.get(name) for each in samples) for name in columns.features]
        self.widths = tuple(len(v) if isinstance(v, list) else 1 for v in values)
        if self._schema.id_kind is None:
            self.id_kind = _id_kind(first_place, {name: row.get(name) for name in both})


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _id_kind(where: str, first: dict[str, object]) -> IdKind:
    """Return "int" if all ids of a row are integers, "string" if one is a string."""
    for column, value in first.items():
        if value is not None and not _is_id(value):
            text = f"{column} is {shown(value)}, expected an integer or a string"
            raise StreamError(where, "type", f"{text}; {AS_TEXT}")
    return "string" if any(isinstance(value, str) for value in first.values()) else "int"
