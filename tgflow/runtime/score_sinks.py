"""Where rows of scores go: a file that is cut back when a run resumes, or a topic."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tgflow.durable.appended import AppendedFile
from tgflow.streams.transports import RecordTopic
from tgflow.streams.write import encode_rows, write_rows

OWNER, ROWS = "scores.json", "scores.arrows"
"""In a run's directory: which file is its own, and the rows of a Parquet file not made yet."""


class ScoresLost(RuntimeError):
    """A file of scores has not the rows that the run has written."""


@dataclass(frozen=True, slots=True)
class ScoreMark:
    """How much was written, as a checkpoint notes it.

    Args:
        num_rows: Rows.
        num_bytes: Bytes of the file that they are in; 0 for a topic.
        crc32: Of these bytes, if a run reads them again; None: unknown.
    """

    num_rows: int = 0
    num_bytes: int = 0
    crc32: int | None = None


class ScoreSink(Protocol):
    """Takes rows of scores, and takes them back."""

    @property
    def num_bytes(self) -> int:
        """Bytes that it has taken; 0 where nothing can be taken back."""

    @property
    def crc32(self) -> int | None:
        """Of the bytes that it has taken; None where they are not read again."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows, which whoever reads along sees at once; raises `OSError` if that fails."""

    def sync(self) -> None:
        """Return once all rows are safe; raises `OSError` if that is not certain."""

    def rewind(self, mark: ScoreMark) -> None:
        """Take back what was written after `mark`.

        Raises:
            ScoresLost: If there is less than that, or something else.
            OSError: If it cannot be taken back.
        """

    def finish(self) -> None:
        """Make what readers want of all rows so far; raises `OSError` if that fails."""

    def close(self) -> None:
        """Give back what is held."""


class TextScores:
    """Rows at the end of a text file.

    Args:
        path: The file.
        kind: "csv", "tsv" or "jsonl".
    """

    crc32 = None

    def __init__(self, path: Path, kind: str) -> None:
        self._file, self._kind = AppendedFile(path), kind

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, after the names of the columns if the format has them."""
        self._file.write(encode_rows(rows, self._kind, header=not self._file.size))

    def sync(self) -> None:
        """Return once all rows are on the disk."""
        self._file.sync()

    def rewind(self, mark: ScoreMark) -> None:
        """Cut the file back to `mark`; it is there afterwards, also if it is empty."""
        _cut(self._file, mark)

    def finish(self) -> None:
        """Do nothing: readers have all rows."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ParquetScores:
    """A Parquet file, which ends in a table of its contents: it is written whenever a run ends.

    Until then rows are in a file that can be cut back, as an Arrow stream.

    Args:
        path: The Parquet file.
        rows: The file of the rows.
    """

    def __init__(self, path: Path, rows: Path) -> None:
        self._path, self._file = path, AppendedFile(rows)
        self.crc32 = 0
        """Of the file of the rows."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the file of the rows."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows as a message of the stream, which their schema begins."""
        if not self._file.size:
            self._add(rows.schema.serialize())
        self._add(rows.serialize())

    def _add(self, message: pa.Buffer) -> None:
        data = message.to_pybytes()
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def sync(self) -> None:
        """Return once all rows are on the disk."""
        self._file.sync()

    def rewind(self, mark: ScoreMark) -> None:
        """Cut the file of the rows back to `mark`, and make sure that they are what was written."""
        _cut(self._file, mark)
        self.crc32 = _crc32_of(self._file.path)
        if mark.crc32 not in (None, self.crc32):
            raise ScoresLost(
                f"{self._file.path} is damaged: its checksum differs, so rows of scores are lost; "
                "bring the file back from a copy, or name another one for those to come: --scores"
            )

    def finish(self) -> None:
        """Write the Parquet file, which takes the place of an earlier one once it is complete."""
        if not self._file.size:
            return
        with pa.memory_map(str(self._file.path)) as source, pa.ipc.open_stream(source) as stream:
            write_rows(self._path, _joined(stream), stream.schema)

    def close(self) -> None:
        """Close the file of the rows."""
        self._file.close()


class TopicScores:
    """Rows as JSON records of a topic, the position as key, by which a reader keeps one of each.

    A run that resumes sends those again that came after its checkpoint: a topic takes nothing back.

    Args:
        topic: Where to.
    """

    num_bytes, crc32 = 0, None

    def __init__(self, topic: RecordTopic) -> None:
        self._topic = topic

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows soon."""
        for row in rows.to_pylist():
            self._topic.send(json.dumps(row).encode(), None, str(row["position"]).encode())

    def sync(self) -> None:
        """Return once the broker has all rows."""
        self._topic.flush()

    def rewind(self, mark: ScoreMark) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Return once the broker has all rows."""
        self._topic.flush()

    def close(self) -> None:
        """Give the connections back."""
        self._topic.close()


_PARQUET_ROWS = 1 << 16
"""Rows of a group in a Parquet file."""


def _joined(stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many small batches in few large ones."""
    waiting: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in stream:
        waiting.append(batch)
        num_rows += len(batch)
        if num_rows >= _PARQUET_ROWS:
            yield pa.concat_batches(waiting)
            waiting, num_rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _crc32_of(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found = zlib.crc32(data, found)
    return found


def _cut(file: AppendedFile, mark: ScoreMark) -> None:
    if file.size < mark.num_bytes:
        raise ScoresLost(
            f"{file.path} has {file.size:,} bytes, and the run has written {mark.num_bytes:,}: "
            "rows of scores are missing; bring the file back from a copy, or name another one: "
            "--scores"
        )
    file.rewind(mark.num_bytes)
    file.write(b"")
