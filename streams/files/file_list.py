"""Which files a stream reads, in which order, and how one is found again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from tgflow.streams.errors import SourceExpired, SourceMismatch, StreamError
from tgflow.streams.files.decoder import Decoder
from tgflow.streams.files.growth import Growth
from tgflow.streams.files.text import TextDecoder
from tgflow.streams.rows.row_batch import Position


class Files:
    """Files (or one table) in the order in which they are read.

    Args:
        decoders: One for each.
        names: What each is called in positions.
        growth: Says whether the last one may grow; None: it does not.
    """

    def __init__(
        self, decoders: Sequence[Decoder], names: Sequence[str], growth: Growth | None = None
    ) -> None:
        self.decoders = list(decoders)
        self.names = list(names)
        self.growth = growth

    def refresh(self) -> None:
        """Add what has come since; nothing can."""

    def is_complete(self) -> bool:
        """Return whether nothing more will come; a last line without its end is then read too."""
        if self.growth is None or not self.growth.is_complete:
            return self.growth is None
        last = self.decoders[-1]
        if isinstance(last, TextDecoder):
            last.complete()
        return True

    def following(self, current: int, is_complete: bool, is_idle: bool, stop: Event) -> int | None:
        """Return which file to read on after the `current` one, itself if it grows; None: none.

        Args:
            current: The file that has been read to its end.
            is_complete: What `is_complete` was before that.
            is_idle: Whether nothing was found in it; then there is a wait.
            stop: Ends the wait.
        """
        while True:
            if current + 1 == len(self.decoders):
                self.refresh()
            if current + 1 < len(self.decoders):
                return current + 1
            if is_complete or self.growth is None:
                return None
            if is_idle and not self.growth.wait(stop):
                return None
            is_idle, last = True, self.decoders[current]
            if isinstance(last, TextDecoder) and last.is_growing:
                return current

    def place(self, current: int) -> Position:
        """Return which file is the `current`, for a position."""
        return {"file": current, "name": self.names[current]}

    def find(self, position: Position) -> int:
        """Return the number of the file of a position.

        Raises:
            SourceExpired: If it is gone.
            SourceMismatch: If another one has its place.
        """
        number = int(position["file"] or 0)
        if number >= len(self.names):
            text = f"file {number + 1}, {position['name']!r}, is not there any more"
            raise SourceExpired(self.names[0], "schema", f"{text}; it had been read in part")
        if self.names[number] != position["name"]:
            text = f"file {number + 1} was {position['name']!r}; give the same files in their order"
            raise SourceMismatch(self.names[number], "schema", text)
        return number

    def progress(self, current: int) -> float:
        """Return which share of all files has been read when one is being read, 0 to 1."""
        total = sum(decoder.size for decoder in self.decoders)
        done = sum(decoder.size for decoder in self.decoders[:current])
        done += round(self.decoders[current].size * self.decoders[current].progress())
        return done / total if total else 1.0


class Folder(Files):
    """The files of a folder in order of name; some may come, and old ones go.

    Args:
        folder: The folder.
        open_file: Returns the decoder of a file.
        growth: Says whether files may still come; each is whole when it comes.

    Raises:
        StreamError: If it holds no files.
    """

    def __init__(
        self, folder: Path, open_file: Callable[[Path], Decoder], growth: Growth | None = None
    ) -> None:
        self._folder = folder
        self._open_file = open_file
        paths = self._paths()
        if not paths:
            raise StreamError(str(folder), "schema", "the folder holds no files")
        super().__init__([open_file(path) for path in paths], [path.name for path in paths], growth)

    def refresh(self) -> None:
        """Add the files that have come since and sort after the last one."""
        last = natural(self.names[-1])
        for path in self._paths():
            if natural(path.name) > last:
                self.decoders.append(self._open_file(path))
                self.names.append(path.name)

    def find(self, position: Position) -> int:
        """Return the number of the file of a position, by its name.

        Raises:
            SourceExpired: If it is gone.
            SourceMismatch: If there are files before it that were not there when it was read.
        """
        name, number = str(position["name"]), int(position["file"] or 0)
        if name not in self.names:
            text = f"{name!r} is gone, of which not all had been read; put it back"
            raise SourceExpired(str(self._folder), "schema", text)
        found = self.names.index(name)
        if found > number:
            text = f"{found} files come before {name!r}, where {number} were when it was read"
            way_out = "give new files names that sort after the old ones"
            raise SourceMismatch(str(self._folder), "schema", f"{text}; {way_out}")
        return found

    def _paths(self) -> list[Path]:
        paths = (path for path in self._folder.iterdir() if path.name[0] not in "._")
        return sorted((p for p in paths if p.is_file()), key=lambda path: natural(path.name))


def natural(name: str) -> list[tuple[str, int]]:
    """Return a key that orders `part-2` before `part-10`: texts and numbers in turn."""
    texts, numbers = re.split("[0-9]+", name), re.findall("[0-9]+", name)
    return list(zip(texts, map(int, [*numbers, 0]), strict=True))
