"""Arrow IPC files and streams, and Feather (version 2), which is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tgflow.streams.checks import invalid_rows
from tgflow.streams.errors import StreamError
from tgflow.streams.formats.table import ColumnarDecoder

_MAGIC = b"ARROW1"


class ArrowDecoder(ColumnarDecoder):
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
                schema = reader.schema
                num_rows = reader.count_rows() if self._is_file else None
        except (pa.ArrowException, OSError) as error:
            raise StreamError(str(path), "syntax", f"no readable Arrow file: {error}") from error
        super().__init__(str(path), path.stat().st_size, schema, num_rows)

    def batches(self, names: Sequence[str], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows, checked: damage found on the way is a `StreamError`."""
        num_read = 0
        try:
            with self._reader() as reader:
                for batch in self._stored(reader):
                    checked = self._check(batch.select(list(names)), num_read)
                    yield from (
                        checked.slice(start, num_rows) for start in range(0, len(batch), num_rows)
                    )
                    num_read += len(batch)
        except (pa.ArrowException, OSError) as error:
            where = f"{self.name}, from row {num_read} on"
            text = f"the data is damaged ({error}); fetch the file again"
            raise StreamError(where, "syntax", text) from error

    def _stored(self, reader: Any) -> Iterator[pa.RecordBatch]:
        if not self._is_file:
            yield from reader
            return
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)

    def _check(self, batch: pa.RecordBatch, num_read: int) -> pa.RecordBatch:
        """Refuse offsets, dictionary indices and text that point or read outside of the data."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            rows = invalid_rows(column)
            if rows is not None:
                where = f"{self.name}, row {num_read + int(rows.argmax())}"
                text = f"{name} is no valid {column.type}: bad UTF-8 or a damaged file"
                raise StreamError(where, "encoding", text)
        return batch

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        with pa.memory_map(str(self._path)) as file:
            yield pa.ipc.open_file(file) if self._is_file else pa.ipc.open_stream(file)


def _starts_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
