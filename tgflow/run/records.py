"""Files of a run directory: metrics, records and health, written so that damage is detected.

metrics.jsonl keeps all of the latest records and a uniform sample of earlier ones. health.json is
replaced every few seconds while the process lives, with or without events: a monitor treats the run
as dead if `updated` is older than `stale_after_seconds`, and reads `state` otherwise.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import compress, count
from pathlib import Path
from typing import Any, Literal

from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.checkpoint.durable.fs import AppendedFile, replace_file, replacing, writing
from tgflow.checkpoint.names import CheckpointError, list_checkpoints
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.run.config.schema import RunConfig

LATEST = 1 << 14
"""Number of latest records that are always kept."""
EARLIER = 1 << 14
"""Maximum number of earlier records kept."""
STEP = 1 << 13
"""Records between two thinnings of the file."""
NUMBER = "number"
"""Key of the number of records written before this one."""


def keep_private(run: RunConfig) -> None:
    """Let only the owner read what this process creates from now on, unless the run shares it.

    The umask is that of the whole process, so that loggers and replicas keep to it; `cli.main`
    restores it.
    """
    if not run.share_files:
        os.umask(0o077)


class RecordFile:
    """The records of a run, at most `LATEST + EARLIER + STEP` of them.

    Of the earlier records one in every 2, 4, 8, ... is kept, with the smallest stride that fits.
    Thinning replaces the file atomically, so that readers always find it complete.
    """

    def __init__(self, path: Path) -> None:
        self._file, self.path = AppendedFile(path), path
        self._numbers = array("q")
        self.num_written = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a strict-JSON record, which other processes can read at once."""
        record = {**record, NUMBER: self.num_written}
        try:
            text = _strict(record)
        except ValueError:  # rarely: `finite` takes as long as the rest
            text = _strict(finite(record))
        crc = zlib.crc32(text.encode())
        self._file.write(f'{text[:-1]},"{KEY}":{crc}}}\n'.encode())
        self._numbers.append(self.num_written)
        self.num_written += 1
        if self.num_written % STEP == 0 and self.num_written > LATEST:
            with suppress(OSError):  # a full disk is reported elsewhere
                self._thin()

    def sync(self) -> None:
        self._file.sync()

    def rewind(self, num: int) -> None:
        """Truncate to the first `num` records; a file with fewer stays unchanged.

        Raises LogCorrupt if no line is a record: it is another file, which stays unchanged.
        """
        self.close()
        self._numbers, end, number, is_own = array("q"), 0, -1, False
        for number, line, is_record in _numbered(self.path):
            is_own |= is_record
            if number >= num:
                break
            self._numbers.append(number)
            end += len(line)
        if number >= 0 and not is_own:
            raise LogCorrupt(f"{self.path} has no record of this run; move it away")
        self._file.rewind(end)
        self.num_written = num

    def close(self) -> None:
        self._file.close()

    def _thin(self) -> None:
        every = 1
        while self.num_written // every > EARLIER:
            every *= 2
        first = self.num_written - LATEST
        kept = [number >= first or number % every == 0 for number in self._numbers]
        lines = self.path.read_bytes().splitlines(keepends=True)
        if all(kept) or len(lines) != len(kept):  # another process has written to it
            return
        self._file.replace(compress(lines, kept))
        self._numbers = array("q", compress(self._numbers, kept))


def _numbered(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, text and soundness of each complete line; damaged lines count too."""
    number = -1
    for line in whole_lines(path):
        number, is_record = number + 1, False
        with suppress(DamagedJson):
            number, is_record = int(read_checked(line).get(NUMBER, number)), True
        yield number, line, is_record


def lost_records(path: Path, num: int) -> str:
    """Describe the loss of records if the first or the last of `num` is gone; empty without."""
    if not num or {0, num - 1} <= {number for number, _, _ in _numbered(path)}:
        return ""
    return f"{path.name} was removed or cut: records are gone of the {num:,} that were written"


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, none if it does not exist."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


KEY = "crc32"


class DamagedJson(ValueError):
    """Raised for text that is not JSON, or whose checksum differs."""


def checksum(value: Mapping[str, Any]) -> int:
    return zlib.crc32(_compact(value).encode())


def read_checked(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object, verify its checksum and remove it."""
    try:
        value = json.loads(text)
    except ValueError as error:  # invalid JSON or UTF-8
        raise DamagedJson(f"it is not JSON: {error}") from None
    if not isinstance(value, dict) or value.pop(KEY, None) != checksum(value):
        raise DamagedJson("its checksum differs")
    return value


_compact: Callable[[Mapping[str, Any]], str] = json.JSONEncoder(separators=(",", ":")).encode
_strict = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


OWN = frozenset({".lock", "run.log", "run.log.1", "health.json", "scores.json"})
"""Files written before a run starts, and the note of its file of scores."""
LEARNED_FILES, DEAD_LETTERS = "files.json", "dead-letters"
BOARD, SEEDS = "tensorboard", "seeds"
"""Folder of the logger, and folder of loggers with several seeds, one each."""
BEFORE_LEARNING = frozenset(
    {"config.toml", "metrics.jsonl", "log", DEAD_LETTERS, "checkpoints", "edge-x.rows"}
    | {"stream.json", "metrics.json", "report.html", "ranks"}
    | {"micro-batches.txt", "scores.arrows", "score-rows", "forget"}
    | {LEARNED_FILES, SEEDS, BOARD}
)
"""Further files of a run that has learned nothing."""
LEARNED = frozenset({"checkpoint", "scores.arrow", "events.arrow"})
"""Further files of a run that has learned."""
_PARTIAL = re.compile(r"\.(.+)\.partial")
"""Name of a temporary file left by a killed run, with the name of its target."""


class RunFiles:
    """A directory for one run; never mixed with the files of another run.

    Raises FileExistsError if it has files that may not be removed: unless it is `resumed`, those of
    a run that has learned, which `clear` removes if it `overwrites`.
    """

    def __init__(self, path: Path, *, resumed: bool = False, overwrites: bool = False) -> None:
        self.path, self._overwrites = path, overwrites
        if not resumed:
            self._check_free()
        self.record_file = RecordFile(path / "metrics.jsonl")

    @classmethod
    def choose(cls, out: str | None, name: str, *, overwrites: bool = False) -> RunFiles:
        """Return the directory `out`; without one the first free of runs/NAME, runs/NAME-2, ..."""
        if out is not None:
            return cls(Path(out), overwrites=overwrites)
        paths = (Path("runs") / (f"{name}-{i}" if i > 1 else name) for i in count(1))
        return cls(next(filter(_is_free, paths)))

    def make(self, run: RunConfig) -> None:
        """Create the directory; private unless the run shares its files, as all files are then."""
        keep_private(run)
        with writing():
            self.path.mkdir(parents=True, exist_ok=True)
        if not run.share_files:
            with suppress(OSError):  # of another user's directory
                self.path.chmod(0o700)

    def clear(self) -> None:
        self._check_free()
        for path in sorted(self.path.iterdir(), key=lambda path: path.name == "config.toml"):
            if _whole(path.name) not in BEFORE_LEARNING | LEARNED:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _check_free(self) -> None:
        if self._overwrites:
            names = _names(self.path)
            others = names - BEFORE_LEARNING - LEARNED if "config.toml" in names else names
            if others:
                text = f"{self.path} holds {min(others)}, which is no file of a run: --overwrite "
                raise FileExistsError(f"{text}removes runs alone; choose another --out")
        elif not _is_free(self.path):
            text = f"{self.path} holds files already; choose another --out, or if it is a run, "
            raise FileExistsError(f"{text}resume it with --resume, or replace it with --overwrite")

    @property
    def records(self) -> Path:
        return self.record_file.path

    def log(self, record: Mapping[str, Any]) -> None:
        self.record_file.write(record)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        value = finite(value)
        self.write(name, json.dumps({**value, KEY: checksum(value)}, indent=1) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        return read_figures(self.path / name)

    def write(self, name: str, text: str) -> None:
        replace_file(self.path / name, [text.encode()])


def to_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def read_figures(path: Path) -> dict[str, Any] | None:
    """Read a file written by `RunFiles.write_json`, None if it does not exist."""
    return read_checked(path.read_bytes()) if path.exists() else None


@dataclass(frozen=True, slots=True)
class Records:
    """Lines of a metrics.jsonl."""

    kept: list[dict[str, Any]]
    num_damaged: int
    """Number of damaged lines, which are skipped; an incomplete last line is not counted."""


def read_records(path: Path, most: int | None = None) -> Records:
    """Return the records of a metrics.jsonl; none if it does not exist."""
    kept: list[dict[str, Any]] = []
    every, num_damaged = 1, 0
    for number, line in enumerate(whole_lines(path)):
        try:
            record = read_checked(line)
            record.pop(NUMBER, None)
        except DamagedJson:
            num_damaged += 1
            continue
        if number % every == 0:
            kept.append(record)
        if most is not None and len(kept) > most:
            kept, every = kept[::2], 2 * every
    return Records(kept, num_damaged)


@dataclass(frozen=True, slots=True)
class RunNote:
    """Note of a run in a checkpoint; the defaults are those of a trainer in Python."""

    build: dict[str, str | int | None] = field(default_factory=dict)
    elapsed: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    """The `fixed_settings`."""
    history: int = 0
    """Events of the initial run (`--init-from`)."""


def run_note(meta: Mapping[str, Any]) -> RunNote:
    note: RunNote = read_as(RunNote, meta.get("run", asdict(RunNote())), "run")
    return note


def _is_free(path: Path) -> bool:
    """Return whether a directory holds at most the files of a run that has learned nothing."""
    records = path / "metrics.jsonl"
    if not _names(path) <= BEFORE_LEARNING or (records.exists() and records.stat().st_size > 0):
        return False
    from tgflow.checkpoint import read_manifest  # deferred, as --help needs no torch

    try:
        metas = [
            read_manifest(each.path)["meta"] for each in list_checkpoints(path / "checkpoints")
        ]
        for meta in metas:
            if read_natural(meta, "position") > run_note(meta).history:
                return False
    except (CheckpointError, OSError):  # a damaged one may be of a run with events
        return False
    return True


def _names(path: Path) -> set[str]:
    """Return the names of a directory's files, but for `OWN`; none if it does not exist."""
    with writing():  # a file in its place
        return {_whole(each.name) for each in path.iterdir()} - OWN if path.exists() else set()


def _whole(name: str) -> str:
    found = _PARTIAL.fullmatch(name)
    return name if found is None else found[1]


def finite(value: Any) -> Any:
    """Convert `value` to strict JSON: numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_name(path: str, model: str) -> str:
    """Return the default name of a run on the stream at `path`, such as collegemsg-tgn."""
    stem = Path("stdin" if path == "-" else path).name.split(".")[0] or "stream"
    return f"{stem}-{model.removesuffix('+pairs').rpartition(':')[2].lower()}"


State = Literal[
    "starting", "recovering", "running", "waiting", "paused", "stopping",
    "stopped", "done", "failed",
]  # fmt: skip
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]
"""`waiting` for events, `paused` near the memory limit or on a full disk, `stopped` by a signal."""
HEALTH_SECONDS = 5.0
"""Maximum seconds between two writes of health.json."""
STALE_AFTER = 6 * HEALTH_SECONDS
LIVE: tuple[State, ...] = STATES[:6]


def write_health(path: Path, state: State, facts: Mapping[str, Any]) -> bool:
    """Replace the file `path` atomically; return False on a disk error."""
    health = {"state": state, "updated": time.time(), "stale_after_seconds": STALE_AFTER}
    health |= {"pid": os.getpid(), **facts}
    try:
        with replacing(path, sync=False) as partial:
            partial.write_text(json.dumps(finite(health), indent=1, allow_nan=False) + "\n")
    except OSError:  # a full disk is reported elsewhere
        return False
    return True


def read_health(path: Path) -> dict[str, Any] | None:
    """Return the file's content and `alive`, whether it is up to date; None without a file."""
    try:
        health: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fresh = abs(time.time() - health["updated"]) <= health["stale_after_seconds"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return health | {"alive": fresh and health.get("state") in LIVE}
