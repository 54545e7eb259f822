"""Log messages of a run: run.log as JSON lines, and stderr as text or JSON.

Messages may quote stream contents, so control characters are escaped.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, TextIO

from tgflow.base.text import printable
from tgflow.run.config import in_flags
from tgflow.run.records import finite

Level = Literal["info", "warning", "error"]
MAX_BYTES = 16 << 20


class RunLog:
    """Writes messages to run.log and stderr."""

    def __init__(
        self,
        path: Path | None,
        format: Literal["text", "json"] = "text",
        say: Callable[[str], None] | None = None,
        *,
        speaker: str = "tgflow",
        says: Collection[Level] = ("info", "warning", "error"),
    ) -> None:
        self._path, self._format = path, format
        self._speaker, self._says = speaker, says
        self._say = say or _to_stderr
        self._file: TextIO | None = None
        self.info = partial(self._write, "info")
        self.warning = partial(self._write, "warning")
        self.error = partial(self._write, "error")

    def progress(self, text: str, **fields: Any) -> None:
        """Write progress to stderr, in JSON mode only."""
        if self._format == "json":
            self._say(_line("info", "progress", text, fields))

    def close(self) -> None:
        """Close run.log; later messages go to stderr only."""
        if self._file is not None:
            self._file.close()
        self._file, self._path = None, None

    def _write(self, level: Level, event: str, text: str, **fields: Any) -> None:
        line = _line(level, event, text, fields)
        if level in self._says:
            if self._format == "json":
                self._say(line)
            elif level != "info":
                self._say(f"{self._speaker}: {printable(text)}")
        if (path := self._path) is None:
            return
        try:
            if self._file is not None and self._file.tell() > MAX_BYTES:
                self._file.close()
                path.replace(path.with_name(f"{path.name}.1"))
                self._file = None
            if self._file is None:
                self._file = path.open("a", encoding="ascii")
            self._file.write(line + "\n")
            self._file.flush()
        except OSError:  # a full disk must not end a run that can continue
            self._file = None


def _line(level: Level, event: str, text: str, fields: dict[str, Any]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "level": level, "event": event, "text": text, **fields}
    return json.dumps(finite(entry), ensure_ascii=True, allow_nan=False, default=str)


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextmanager
def library_messages(run_log: RunLog) -> Iterator[None]:
    """Forward the package's log messages to `run_log`; failed checkpoints are logged anyway."""

    def emit(record: logging.LogRecord) -> None:
        event = record.name.rpartition(".")[2]
        write = run_log.warning if record.levelno >= logging.WARNING else run_log.info
        args = record.args if isinstance(record.args, tuple) else ()
        first = args[:1] if record.msg != "%s" else ()  # the file or topic
        names = (arg for arg in args if isinstance(arg, PurePath))
        write(event, in_flags(record.getMessage(), *first, *names))

    library, handler = logging.getLogger("tgflow"), logging.Handler(logging.INFO)
    handler.emit = emit  # type: ignore[method-assign]
    propagate, library.propagate = library.propagate, False
    library.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no checkpoint at step", RuntimeWarning)
            yield
    finally:
        library.removeHandler(handler)
        library.propagate = propagate
