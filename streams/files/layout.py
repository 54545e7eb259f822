"""How delimited text is laid out, where somebody says what its format does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SPACE, TAB = "space", "tab"
UNREAD = "_"
"""The name of a column that nobody reads; there may be many."""


@dataclass(frozen=True, slots=True)
class TextLayout:
    r"""How delimited text is laid out; None for what its format says.

    Args:
        header: Whether its first line names the columns; None: unless `columns` does.
        columns: The columns' names in order, also as one text with commas between them; "_" for one
            that is not read.
        sep: What stands between two values: a character, "tab", or "space" for any number of
            spaces and tabs.
        comment: What lines begin with that are no rows.

    Raises:
        ValueError: If one is not such.
    """

    header: bool | None = None
    columns: Sequence[str] | str | None = None
    sep: str | None = None
    comment: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        names = self.names
        twice = [name for name in names or () if name != UNREAD and (names or []).count(name) > 1]
        if names is not None and (twice or not all(names)):
            what = f"{twice[0]!r} is there twice" if twice else "a name is empty"
            raise ValueError(f"columns={self.columns!r}: {what}; write _ for one that is not read")
        if self.sep not in (None, SPACE, TAB) and (len(self.sep) != 1 or self.sep in '"\n\r'):
            raise ValueError(f"sep must be one character, tab or space, got {self.sep!r}")
        if self.sep is not None and not self.sep.isascii():
            raise ValueError(f"sep must be an ASCII character, tab or space, got {self.sep!r}")
        if self.comment is not None and not self.comment.strip():
            raise ValueError(f"comment must be what lines begin with, as #, got {self.comment!r}")

    @property
    def names(self) -> list[str] | None:
        """The names of the columns, if somebody says them."""
        if self.columns is None:
            return None
        columns = self.columns.split(",") if isinstance(self.columns, str) else self.columns
        return [name.strip() for name in columns]

    @property
    def is_said(self) -> bool:
        """Whether anybody has said anything."""
        return self != TextLayout()

    def has_header(self, default: bool) -> bool:
        """Return whether the first line names columns, in a format where it does by `default`."""
        if self.header is not None:
            return self.header
        return default and self.columns is None
