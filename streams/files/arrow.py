"""Arrow IPC files and streams, and Feather (version 2), which is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tgflow.streams.errors import StreamError
from tgflow.streams.files.table import BinaryDecoder

_MAGIC = b"ARROW1"


class ArrowDecoder(BinaryDecoder):
    """An Arrow IPC file, mapped into memory, or an Arrow IPC stream.

    Args:
        path: The file.

    Raises:
        StreamError: If it is neither.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_file = _starts_with_magic(path)
        try:
            with self._reader() as reader:
                names = reader.schema.names
                num_rows = reader.count_rows() if self._is_file else None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise StreamError(str(path), "syntax", f"no readable Arrow file: {error}") from error
        super().__init__(path, names, num_rows, may_grow=not self._is_file)

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is `SourceCorrupt`."""
        num_read = 0
        try:
            with self._reader() as reader:
                for batch in self._stored(reader):
                    skip = min(max(first - num_read, 0), len(batch))
                    wanted = batch.select(list(names))
                    for start in range(skip, len(batch), num_rows):
                        yield wanted.slice(start, num_rows)
                    num_read += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(num_read, error) from error

    def _stored(self, reader: Any) -> Iterator[pa.RecordBatch]:
        if not self._is_file:
            yield from reader
            return
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        with pa.memory_map(str(self._path)) as file:
            yield pa.ipc.open_file(file) if self._is_file else pa.ipc.open_stream(file)


def _starts_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
