"""Bindings of the core that tables use: row files, memory that grows in place, rows by id."""

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
