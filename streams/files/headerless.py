"""The lists of edges of SNAP, KONECT and Network Repository, as they are published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tgflow.streams.files.blocks import BLOCK_BYTES
from tgflow.streams.files.laid_out import LaidOutDecoder
from tgflow.streams.files.layout import TextLayout


class SnapDecoder(LaidOutDecoder):
    """SNAP's temporal networks: values between spaces, tabs or commas; # and % begin comments.

    The columns are src, dst, t, and c3, c4, ... for what comes behind.

    Args:
        path: The file, compressed if its name says so.
        layout: What somebody has said.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.

    Raises:
        StreamError: As `LaidOutDecoder`.
    """

    has_header = False
    comments = (b"#", b"%")
    blanks = b"\t,"

    def __init__(
        self,
        path: Path,
        layout: TextLayout,
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(path, layout, " ", max_bytes, block_bytes)


class EdgesDecoder(SnapDecoder):
    """Network Repository's `.edges`: src, dst, t; or with more values src, dst, weight, t.

    Args:
        path: The file, compressed if its name says so.
        layout: What somebody has said.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.

    Raises:
        StreamError: As `LaidOutDecoder`.
    """

    def names_of(self, width: int) -> Sequence[str]:
        """Return what the columns of rows of `width` values are called."""
        return super().names_of(width) if width < 4 else _with_weight(width)


class KonectDecoder(SnapDecoder):
    """KONECT's `out.NAME`: src, dst, weight and t; its first comment says whether it is bipartite.

    A list without times lacks the column t, which every stream needs.

    Args:
        path: The file, compressed if its name says so.
        layout: What somebody has said.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.

    Raises:
        StreamError: As `LaidOutDecoder`.
    """

    def __init__(
        self,
        path: Path,
        layout: TextLayout,
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(path, layout, max_bytes, block_bytes)
        self.bipartite = bool(self.head_comments) and b"bip" in self.head_comments[0].split()

    def names_of(self, width: int) -> Sequence[str]:
        """Return what the columns of rows of `width` values are called."""
        return _with_weight(width)


def _with_weight(width: int) -> Sequence[str]:
    return [*("src", "dst", "weight", "t")[:width], *(f"c{i}" for i in range(4, width))]
