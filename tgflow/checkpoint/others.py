"""Other processes that write files of the same checkpoint, as whoever commits it sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tgflow.checkpoint.manifest import Files


class Others(Protocol):
    """Who writes files into a checkpoint's directory beside this process, which commits it."""

    def announce(self, directory: Path, linkable: Path | None) -> None:
        """Have them begin.

        Args:
            directory: Where to write; it is there.
            linkable: The checkpoint whose sealed files this one shares; None: all are written.
        """

    def wait(self) -> None:
        """Return once none of them writes any more, or they take too long."""

    def files(self, directory: Path) -> Files:
        """Return what they have written, all of it on the disk; after `wait`.

        Raises:
            OSError: If somebody has failed, or something is missing.
        """


class Nobody:
    """Nobody else writes."""

    def announce(self, directory: Path, linkable: Path | None) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""

    def files(self, directory: Path) -> Files:
        """Return nothing."""
        return {}


NOBODY = Nobody()
