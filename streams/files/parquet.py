"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tgflow.streams.errors import StreamError
from tgflow.streams.files.table import BinaryDecoder


class ParquetDecoder(BinaryDecoder):
    """A Parquet file, read row group after row group.

    Args:
        path: The file.

    Raises:
        StreamError: If it is no Parquet file.
    """

    def __init__(self, path: Path) -> None:
        try:
            with pq.ParquetFile(path) as file:
                names, num_rows = file.schema_arrow.names, file.metadata.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise StreamError(str(path), "syntax", f"no readable Parquet file: {error}") from error
        super().__init__(path, names, num_rows, may_grow=False)

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is `SourceCorrupt`."""
        num_read = first
        try:
            with pq.ParquetFile(self._path) as file:
                groups, skip = _groups_from(file.metadata, first)
                for batch in file.iter_batches(num_rows, row_groups=groups, columns=list(names)):
                    if skip >= len(batch):
                        skip -= len(batch)
                        continue
                    yield batch.slice(skip)
                    num_read += len(batch) - skip
                    skip = 0
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(num_read, error) from error


def _groups_from(metadata: pq.FileMetaData, first: int) -> tuple[list[int], int]:
    """Return the row groups from the one of row `first` on, and that row's number in it."""
    group = 0
    while group < metadata.num_row_groups and first >= (rows := metadata.row_group(group).num_rows):
        first, group = first - rows, group + 1
    return list(range(group, metadata.num_row_groups)), first
