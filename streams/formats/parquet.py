"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tgflow.streams.errors import StreamError
from tgflow.streams.formats.table import ColumnarDecoder


class ParquetDecoder(ColumnarDecoder):
    """A Parquet file, read row group after row group.

    Args:
        path: The file.

    Raises:
        StreamError: If it is no Parquet file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with pq.ParquetFile(path) as file:
                schema, num_rows = file.schema_arrow, file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise StreamError(str(path), "syntax", f"no readable Parquet file: {error}") from error
        super().__init__(str(path), path.stat().st_size, schema, num_rows)

    def batches(self, names: Sequence[str], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is a `StreamError`."""
        num_read = 0
        try:
            with pq.ParquetFile(self._path) as file:
                for batch in file.iter_batches(num_rows, columns=list(names)):
                    yield batch
                    num_read += len(batch)
        except (pa.ArrowException, OSError) as error:
            where = f"{self.name}, from row {num_read} on"
            text = f"the data is damaged ({error}); fetch the file again"
            raise StreamError(where, "syntax", text) from error
