"""What tables use of the core: files of rows, memory that grows in place, and rows by id."""

from tgflow._core import (
    DamagedFile,
    ReservedMemory,
    RowFile,
    RowReader,
    RowRequest,
    gather_rows,
    scatter_rows,
)

__all__ = [
    "DamagedFile",
    "ReservedMemory",
    "RowFile",
    "RowReader",
    "RowRequest",
    "gather_rows",
    "scatter_rows",
]
