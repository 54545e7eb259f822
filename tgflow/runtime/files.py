"""Files of a run directory: metrics, records and health, written so that damage is detected.

metrics.jsonl keeps all of the latest records and an even share of the earlier ones. health.json is
replaced every few seconds while the process lives, with or without events: a monitor takes the run
for dead if `updated` is older than `stale_after_seconds`, and reads `state` otherwise.
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import compress, count
from pathlib import Path
from typing import Any, Literal

from tgflow.checkpoint.names import CheckpointError, list_checkpoints
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.config import Config, to_toml
from tgflow.durable.fs import AppendedFile, replace_file, replacing

LATEST = 1 << 14
"""Records that are kept, whatever comes."""
EARLIER = 1 << 14
"""Records before those that are kept at most."""
STEP = 1 << 13
"""Records between two times that the file is thinned out."""
NUMBER = "number"
"""The key that has how many records were written before this one."""


class RecordFile:
    """The records of a run, at most `LATEST + EARLIER + STEP` of them.

    Of those before the latest one in every 2, 4, 8, ... is kept, as few as needed. The file is
    replaced where it is thinned out, so that readers find it whole at any time.
    """

    def __init__(self, path: Path) -> None:
        self._file, self.path = AppendedFile(path), path
        self._numbers = array("q")
        self._next = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record, which strict JSON can hold; at once readable by others."""
        text = _compact({**record, NUMBER: self._next})
        crc = zlib.crc32(text.encode())
        self._file.write(f'{text[:-1]},"{KEY}":{crc}}}\n'.encode())
        self._numbers.append(self._next)
        self._next += 1
        if self._next % STEP == 0 and self._next > LATEST:
            with suppress(OSError):  # a full disk is reported where it matters
                self._thin()

    def sync(self) -> int:
        """Return how many records were written, all of which are on the disk now."""
        self._file.sync()
        return self._next

    def rewind(self, num: int) -> None:
        """Cut off all records but the first `num`; a file with fewer stays as it is."""
        self.close()
        self._numbers, end, number = array("q"), 0, -1
        for line in whole_lines(self.path):
            number += 1  # also of a line that is damaged
            with suppress(DamagedJson):
                number = int(read_checked(line).get(NUMBER, number))
            if number >= num:
                break
            self._numbers.append(number)
            end += len(line)
        self._file.rewind(end)
        self._next = num

    def close(self) -> None:
        self._file.close()

    def _thin(self) -> None:
        every = 1
        while self._next // every > EARLIER:
            every *= 2
        first = self._next - LATEST
        kept = [number >= first or number % every == 0 for number in self._numbers]
        lines = self.path.read_bytes().splitlines(keepends=True)
        if all(kept) or len(lines) != len(kept):  # another process has written to it
            return
        self._file.replace(compress(lines, kept))
        self._numbers = array("q", compress(self._numbers, kept))


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file, none if it is not there."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


KEY = "crc32"


class DamagedJson(ValueError):
    """A text is not JSON, or not what was written."""


def checksum(value: Mapping[str, Any]) -> int:
    return zlib.crc32(_compact(value).encode())


def read_checked(text: str | bytes) -> dict[str, Any]:
    """Return the value that a text holds, without its checksum."""
    try:
        value = json.loads(text)
    except ValueError as error:  # of JSON, or of UTF-8
        raise DamagedJson(f"it is not JSON: {error}") from None
    if not isinstance(value, dict) or value.pop(KEY, None) != checksum(value):
        raise DamagedJson("its checksum differs")
    return value


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


OWN = frozenset({".lock", "run.log", "run.log.1", "health.json", "scores.json"})
"""Files that a run writes before it starts, and the note of its file of scores."""
LOGS = {"csv": "metrics.csv", "tensorboard": "tensorboard", "wandb": "wandb"}
"""Files of loggers by the values of `--log-to`."""
SEEDS = "seeds"
"""Folder of the loggers of each of several seeds."""
BEFORE_LEARNING = frozenset(
    {"config.toml", "metrics.jsonl", "log", "dead-letters", "checkpoints", "edge-x.rows"}
    | {"stream.json", "metrics.json", "report.html", "injected.csv", "ranks"}
    | {"micro-batches.txt", "scores.arrows", SEEDS, *LOGS.values()}
)
"""Further files of a run that has learned nothing."""
_PARTIAL = re.compile(r"\.(.+)\.partial")
"""The name of a file that a run was killed over, and in it that of the file it was to become."""


class RunFiles:
    """A directory for one run; it never mixes with another one's files."""

    def __init__(self, path: Path, *, resumed: bool = False) -> None:
        self.path = path
        if not resumed:
            self._check_free()
        self.record_file = RecordFile(path / "metrics.jsonl")

    @classmethod
    def choose(cls, out: str | None, name: str) -> RunFiles:
        """Return the directory `out`; without one the first free of runs/NAME, runs/NAME-2, ..."""
        if out is not None:
            return cls(Path(out))
        paths = (Path("runs") / (f"{name}-{i}" if i > 1 else name) for i in count(1))
        return cls(next(filter(_is_free, paths)))

    def make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove what a run has left that has learned nothing; call it with the lock."""
        self._check_free()
        for path in [*self.path.iterdir()]:
            if _whole(path.name) not in BEFORE_LEARNING:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _check_free(self) -> None:
        if not _is_free(self.path):
            raise FileExistsError(
                f"{self.path} holds files already; choose another --out, remove it, or resume it "
                "if it is a run: --resume"
            )

    @property
    def records(self) -> Path:
        return self.record_file.path

    def write_config(self, config: Config) -> None:
        """Write config.toml, which `--config` reads: all but where this run went."""
        run = replace(config.run, out=None)
        self._write("config.toml", to_toml(replace(config, run=run)))

    def log(self, record: Mapping[str, Any]) -> None:
        self.record_file.write(finite(record))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        value = finite(value)
        self._write(name, json.dumps({**value, KEY: checksum(value)}, indent=1) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        return read_figures(self.path / name)

    def write_report(self, page: str) -> None:
        self._write("report.html", page)

    def close(self) -> None:
        self.record_file.close()

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, [text.encode()])


def to_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def read_figures(path: Path) -> dict[str, Any] | None:
    """Return what `RunFiles.write_json` wrote to a file, None if it is not there."""
    return read_checked(path.read_bytes()) if path.exists() else None


@dataclass(frozen=True, slots=True)
class Records:
    """Lines of a metrics.jsonl."""

    kept: list[dict[str, Any]]
    """Those that were asked for, in order."""
    num_damaged: int
    """Lines that are not what was written, and are left out; not one at the end, cut off."""


def read_records(path: Path, most: int | None = None) -> Records:
    """Return the records of a metrics.jsonl; none if it is not there."""
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
    """What a checkpoint notes of its run; the defaults are those of a trainer in Python."""

    build: dict[str, str | int | None] = field(default_factory=dict)
    elapsed: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    """The `fixed_settings`."""
    history: int = 0
    """Events of another run that this one began with."""


def run_note(meta: Mapping[str, Any]) -> RunNote:
    """Return the note of a run in the meta of a checkpoint."""
    note: RunNote = read_as(RunNote, meta.get("run", asdict(RunNote())), "run")
    return note


def _is_free(path: Path) -> bool:
    """Return whether nothing is there but what a run leaves that has learned nothing."""
    if not path.exists():
        return True
    names = {_whole(entry.name) for entry in path.iterdir()} - OWN
    records = path / "metrics.jsonl"
    if not names <= BEFORE_LEARNING or (records.exists() and records.stat().st_size > 0):
        return False
    from tgflow.checkpoint import read_manifest  # the help needs no torch

    try:
        metas = [
            read_manifest(each.path)["meta"] for each in list_checkpoints(path / "checkpoints")
        ]
        for meta in metas:
            if read_natural(meta, "position") > run_note(meta).history:
                return False
    except (CheckpointError, OSError):  # a damaged one may be of more
        return False
    return True


def _whole(name: str) -> str:
    found = _PARTIAL.fullmatch(name)
    return name if found is None else found[1]


def finite(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_name(config: Config) -> str:
    """Return what a run is called where nobody named it, such as collegemsg-tgn."""
    path = "stdin" if config.stream.path == "-" else config.stream.path
    stem = Path(path).name.split(".")[0] or "stream"
    return f"{stem}-{config.model.name.removesuffix('+pairs').rpartition(':')[2].lower()}"


State = Literal[
    "starting", "recovering", "running", "waiting", "paused", "stopping",
    "stopped", "done", "failed",
]  # fmt: skip
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]
"""`waiting` for events, `paused` near the memory limit or on a full disk, `stopped` by a signal."""
HEALTH_SECONDS = 5.0
"""Between two files, at most."""
STALE_AFTER = 6 * HEALTH_SECONDS
LIVE: tuple[State, ...] = STATES[:6]


def write_health(path: Path, state: State, facts: Mapping[str, Any]) -> bool:
    """Replace the file `path` at once; return whether the disk let it."""
    health = {
        "state": state,
        "updated": time.time(),
        "stale_after_seconds": STALE_AFTER,
        "pid": os.getpid(),
        **facts,
    }
    try:
        with replacing(path, sync=False) as partial:
            partial.write_text(json.dumps(finite(health), indent=1, allow_nan=False) + "\n")
    except OSError:  # a full disk is reported elsewhere
        return False
    return True


def read_health(path: Path) -> dict[str, Any] | None:
    """Return what the file says and `alive`: whether a process keeps it fresh; None without one."""
    try:
        health: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fresh = abs(time.time() - health["updated"]) <= health["stale_after_seconds"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return health | {"alive": fresh and health.get("state") in LIVE}
