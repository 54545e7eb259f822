"""Dead letters: all rejected rows, with place and reason."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tgflow.base.text import printable
from tgflow.checkpoint.durable.fs import RealFs, crc32_of
from tgflow.streams.errors import MAX_MESSAGE
from tgflow.streams.rows.row_batch import BadRow

_log = logging.getLogger(__name__)

MAX_RAW_BYTES = 4096

Length: TypeAlias = dict[str, Any]
"""Length written so far: {"segment": 0, "byte": 1234, "crc32": [...]}, with a checksum of each file
up to there."""
NO_LETTERS: Length = {"segment": 0, "byte": 0, "crc32": [0]}


class DeadLetterFiles:
    """Dead letters as JSON lines in files `000000.jsonl`, `000001.jsonl`, ...

    Files contain each letter exactly once: `length` is saved with the positions of the sources, and
    `rewind` truncates the files to it on resume. An entry has the keys source, place, code, message
    (at most 200 characters), num_bytes, sha256 (of all raw bytes) and raw (base64 of the first
    4 KiB).

    After a failed operation all later ones fail too, as the file content is unknown.

    Args:
        segment_bytes: Size at which a new file is started.
        keep: Number of latest files to keep, at least 2; None: all.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fs: RealFs | None = None,
        segment_bytes: int = 64 << 20,
        keep: int | None = None,
    ) -> None:
        self._directory, self._keep = directory, keep
        self._fs = fs or RealFs()
        self._segment_bytes = segment_bytes
        if not directory.exists():
            self._fs.make_directory(directory)
            self._fs.sync_directory(directory.parent)
        segments = self._segments()
        self._segment = segments[-1] if segments else 0
        self._byte = self._path(self._segment).stat().st_size if segments else 0
        self._crc32 = [crc32_of(self._path(segment)) for segment in range(self._segment + 1)]
        self._fd: int | None = None
        self._failure: OSError | None = None

    @property
    def length(self) -> Length:
        """Length written so far; durable after `sync`."""
        return {"segment": self._segment, "byte": self._byte, "crc32": [*self._crc32]}

    def write(self, source: str, rows: Sequence[BadRow]) -> None:
        """Append rejected rows of a source; `sync` makes them durable."""
        if not rows:
            return
        data = b"".join(letter_of(source, row) for row in rows)
        with self._failing():
            self._fs.write(self._open(), data)
            self._byte += len(data)
            self._crc32[-1] = zlib.crc32(data, self._crc32[-1])

    def sync(self) -> None:
        """Block until all letters are on disk."""
        with self._failing():
            if self._fd is not None:
                self._fs.sync(self._fd)

    def rewind(self, length: Length) -> None:
        """Remove letters written to files after `length`.

        Dead letters are diagnostics only: if some are missing or damaged, a warning is logged, a
        partial one is truncated, and a new file is started. A whole file may be removed.
        """
        self._close()
        segment, byte, expected = length["segment"], length["byte"], length["crc32"]
        path = self._path(segment)
        size = path.stat().st_size if path.exists() else 0
        for later in reversed(self._segments()):  # a crash in between leaves no gap
            if later > segment:
                self._fs.unlink(self._path(later))
        found = [*self._crc32, *[0] * (segment - self._segment)][:segment]
        found.append(crc32_of(path, byte))
        is_same = size >= byte and found[-1] == expected[-1]  # not damaged, nor another file
        for number, (is_, was) in enumerate(zip(found, expected, strict=True)):
            if is_ != was and self._path(number).exists() and (number < segment or size >= byte):
                text = "%s is damaged: its dead letters are not those that were written"
                _log.warning(text, self._path(number))
        whole = byte if is_same else size
        if size < byte:
            text = "%s holds %d bytes, but %d had been written: dead letters are missing"
            _log.warning(text, path, size, byte)
            whole = path.read_bytes().rfind(b"\n") + 1 if size else 0
        if whole < size:
            self._fs.truncate(path, whole)
        if not is_same:
            found[-1] = crc32_of(path)
            segment, byte = segment + 1, 0
        self._fs.sync_directory(self._directory)
        found += [0] * (segment - len(found) + 1)
        self._segment, self._byte, self._crc32, self._failure = segment, byte, found, None

    def close(self) -> None:
        """Sync all letters, then close the files."""
        try:
            if self._failure is None:
                self.sync()
        finally:
            self._close()

    def _segments(self) -> list[int]:
        names = (path.stem for path in self._directory.iterdir() if path.suffix == ".jsonl")
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:06}.jsonl"

    def _open(self) -> int:
        """Return the descriptor of the current file; start a new one if it is full."""
        if self._byte >= self._segment_bytes:
            self.sync()
            self._close()
            self._segment, self._byte = self._segment + 1, 0
            self._crc32.append(0)
            for old in [] if self._keep is None else self._segments()[: 1 - self._keep]:
                self._fs.unlink(self._path(old))
        if self._fd is None:
            path = self._path(self._segment)
            if path.exists():
                self._fd = self._fs.append_to(path)
            else:
                self._fd = self._fs.create(path)
                self._fs.sync_directory(self._directory)
        return self._fd

    def _close(self) -> None:
        if self._fd is not None:
            self._fs.close(self._fd)
        self._fd = None

    @contextmanager
    def _failing(self) -> Iterator[None]:
        if self._failure is not None:
            why = self._failure.strerror or str(self._failure)
            text = f"dead letters could not be written before ({why})"
            raise OSError(self._failure.errno, text, os.fspath(self._directory))
        try:
            yield
        except OSError as error:
            self._failure = error
            raise


def letter_of(source: str, row: BadRow) -> bytes:
    """Encode a row as a line of JSON, ASCII only, so that terminals interpret no raw bytes."""
    raw = row.origin.raw
    entry = {
        "source": source,
        "place": dict(row.origin.place),
        "code": row.code,
        "message": printable(row.text, MAX_MESSAGE),
        "num_bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "raw": base64.b64encode(raw[:MAX_RAW_BYTES]).decode(),
    }
    return f"{json.dumps(entry)}\n".encode()
