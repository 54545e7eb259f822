"""The files that a run learns one after another (`--append`), in files.json of its directory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.checkpoint.durable.fs import sha256_of
from tgflow.checkpoint.typed import read_as
from tgflow.graph.log import EventLog
from tgflow.run.records import LEARNED_FILES, DamagedJson, RunFiles, read_figures
from tgflow.streams.files.reader import is_pipe, paths_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedFile:
    """A file or folder, whose events are those from `start` on, up to `stop` once it has ended."""

    path: str
    start: int
    stop: int | None = None
    digests: list[str] = field(default_factory=list)
    """Result of `digests_of`, once it has ended; none of a pipe, or of a table in memory."""
    times: list[int] = field(default_factory=list)
    """Times of the first event that is not forgotten and of the last, once it has ended."""
    ended: str | None = None
    """When it was learned, in UTC."""


class LearnedFiles:
    """The files of a run, in order; the last one may not have ended."""

    def __init__(self, path: Path | None = None) -> None:
        self.entries: list[LearnedFile] = []
        try:
            found = None if path is None else read_figures(path / LEARNED_FILES)
            if found is not None:
                self.entries = read_as(list[LearnedFile], found.get("files"), LEARNED_FILES)
        except DamagedJson as error:
            assert path is not None
            text = f"{path / LEARNED_FILES} is damaged: {error}; bring it back from a copy"
            raise LogCorrupt(text) from None

    @property
    def has_ended(self) -> bool:
        return bool(self.entries) and self.entries[-1].stop is not None

    def with_digest(self, digest: str) -> LearnedFile | None:
        """Return the file with a digest that was learned to its end; None without."""
        return next((each for each in self.entries if digest in each.digests), None)

    def begin(self, files: RunFiles, part: int, path: str, start: int) -> None:
        """Record that a file is learned, as the entry `part`; before any of its rows is."""
        last = LearnedFile(path=path, start=start)
        for entry in self.entries[part:]:
            last = replace(entry, path=path, stop=None)
        self._write(files, [*self.entries[:part], last])

    def end(self, files: RunFiles, log: EventLog, stop: int) -> None:
        """Record that the last file was learned to its end, which is the log position `stop`."""
        *before, last = self.entries
        first = max(last.start, log.first)
        ends = [(at, at + 1) for at in (first, stop - 1)] if stop > last.start else []
        digests: list[str] = []
        if not is_pipe(last.path):
            with suppress(FileNotFoundError):
                digests = digests_of(last.path)
        times, ended = [int(log.read(*each).t) for each in ends], datetime.now(UTC)
        last = replace(
            last, stop=stop, digests=digests, times=times, ended=f"{ended:%Y-%m-%d %H:%M}"
        )
        self._write(files, [*before, last])

    def withdraw(self, files: RunFiles) -> None:
        self._write(files, self.entries[:-1])

    def _write(self, files: RunFiles, entries: Sequence[LearnedFile]) -> None:
        self.entries = [*entries]
        files.write_json(LEARNED_FILES, {"files": [asdict(each) for each in entries]})


def digests_of(path: str) -> list[str]:
    """Return the SHA-256 of a file, or of each file in a folder."""
    return [sha256_of(each) for each in paths_of(path)]
