"""Bindings of the core that tables use: row files, memory that grows in place, rows by id."""

from tgflow._core import DamagedFile as DamagedFile
from tgflow._core import ReservedMemory as ReservedMemory
from tgflow._core import RowFile as RowFile
from tgflow._core import RowReader as RowReader
from tgflow._core import RowRequest as RowRequest
from tgflow._core import gather_rows as gather_rows
from tgflow._core import scatter_rows as scatter_rows
