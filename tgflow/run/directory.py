"""Run directories: locking, settings, and which settings may change on resume."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tgflow.base.setting import Effect
from tgflow.checkpoint import CheckpointError, list_checkpoints, read_manifest
from tgflow.checkpoint.durable.lock import RunLock
from tgflow.checkpoint.durable.log import path_of
from tgflow.checkpoint.typed import read_natural
from tgflow.run.config import Config, fields, flag_of, to_toml
from tgflow.run.config.load import ConfigError, flat, load_config, quote_json, replaced
from tgflow.run.config.rules import Command, check_rules
from tgflow.run.config.schema import FILED
from tgflow.run.learned_files import LearnedFile, LearnedFiles
from tgflow.run.records import RunFiles, run_note
from tgflow.streams.transports import scheme_of

EFFECTS: dict[Effect, str] = {
    "any_time": "does not change results",
    "from_now": "applies from here on",
    "fixed_model": "resets model, optimizer and memory; the events are kept",
    "fixed": "cannot change within a run: give another --out",
}
"""Effects of a changed value on resume, mildest first."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose value differs from the run's."""

    key: str
    effect: Effect
    old: Any
    new: Any


def fixed_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `flat` that are stored in a checkpoint."""
    return {each.key: values[each.key] for each in fields() if each.effect != "any_time"}


def gravest(changed: Sequence[SettingChange]) -> Effect:
    return max((each.effect for each in changed), key=[*EFFECTS].index, default="any_time")


LOCK, SETTINGS = ".lock", "config.toml"


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """Options of a command that resumes."""

    resume: bool = False
    allow_change: bool | None = None
    stated: Mapping[str, Any] | None = None
    overwrite: bool = False
    append: str | None = None


@dataclass(eq=False)
class RunDirectory:
    """A run directory locked by this process; a context manager."""

    files: RunFiles
    config: Config
    changed: Sequence[SettingChange] = ()
    resumed: bool = False
    lock: RunLock | None = None
    saved: Config | None = None
    """Settings to keep in config.toml until `accept_settings`; None: `config`."""
    options: ResumeOptions = field(default_factory=ResumeOptions)
    unknown: Sequence[str] = ()
    learned: LearnedFiles = field(default_factory=LearnedFiles)
    """The files that were learned one after another."""

    def __post_init__(self) -> None:
        self.part = max(0, len(self.learned.entries) - (self.options.append is None))
        """Number of them before the one that is learned now."""

    @classmethod
    def find(
        cls, config: Config, name: str, options: ResumeOptions, command: Command, world: int = 1
    ) -> RunDirectory:
        """Return the directory and the resolved settings of the run; changes nothing on disk.

        A directory of a run that has learned nothing may be reused. Raises `ConfigError` if
        settings may not change, or break a rule (`tgflow.run.config.rules`).
        """
        word = "--resume" if options.resume else "--overwrite"
        if options.resume and options.overwrite:
            raise ConfigError("--resume continues a run and --overwrite replaces it: give one")
        if (options.resume or options.overwrite) and config.run.out is None:
            raise ConfigError(f"{word} needs the run's directory: {word} --out runs/NAME")
        path = Path(config.run.out or "")
        if not options.resume or not (path / SETTINGS).exists():
            files = RunFiles.choose(config.run.out, name, overwrites=options.overwrite)
            check_rules(config, command, world)
            return cls(files, config)
        with ExitStack() as opened:
            lock = RunLock(path / LOCK, say=_say)
            opened.callback(lock.release)
            unknown: list[str] = []
            meta = _newest_meta(path)
            saved = _saved(path, run_note(meta).settings, options.append, unknown)
            stated = {**(options.stated or {}), "run.out": config.run.out}
            _check_stream(path, saved.stream.path, stated)
            wanted = replaced(saved, stated)
            if wanted.placement not in FILED:  # irrelevant where rows are in memory now
                unused = {"tables.edge_budget": None, "tables.edge_path": None}
                wanted = replaced(saved, unused | stated)
            changed = _changes(path, flat(saved), flat(wanted), options)
            check_rules(wanted, command, world, resumed=True)
            learned = LearnedFiles(path)
            if options.append and not learned.entries:
                stop = read_natural(meta, "position")  # of a trainer in Python
                learned.entries = [LearnedFile(path="", start=0, stop=stop)]
            opened.pop_all()
        files = RunFiles(path, resumed=True)
        return cls(files, wanted, changed, True, lock, saved, options, unknown, learned)

    @property
    def first(self) -> int:
        """Number of events of the files before."""
        return (self.learned.entries[self.part - 1].stop or 0) if self.part else 0

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def effect(self) -> Effect:
        return gravest(self.changed)

    def take(self) -> None:
        """Lock the directory; remove the files of a run that is replaced or has learned nothing.

        Idempotent.
        """
        self.files.make(self.config.run)
        if self.lock is None:
            self.lock = RunLock(self.path / LOCK, say=_say)
            self.files.clear()

    def __enter__(self) -> Self:
        """Lock the directory, and write its settings; raises as `take`."""
        self.take()
        self._write()  # which also checks that the directory is writable
        return self

    def __exit__(self, *error: object) -> None:
        self.files.record_file.close()
        self.release()

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def newest_meta(self) -> dict[str, Any]:
        """Return the meta of the newest checkpoint with an intact manifest; empty without one."""
        return _newest_meta(self.path)

    def compare(self, counting: Mapping[str, Any]) -> None:
        saved = _saved(self.path, counting, self.options.append)
        self.changed = _changes(self.path, flat(saved), flat(self.config), self.options)

    def accept_settings(self) -> None:
        """Write config.toml of a resumed run with its new settings.

        Until the next checkpoint, another resume uses the checkpoint's values of `fixed_settings`.
        """
        if self.resumed:
            self.saved = None
            self._write()

    def _write(self) -> None:
        """Write config.toml, which `--config` reads: all settings but the output directory."""
        config = self.config if self.saved is None else self.saved
        self.files.write(SETTINGS, to_toml(replaced(config, {"run.out": None})))


def _newest_meta(path: Path) -> dict[str, Any]:
    for entry in reversed(list_checkpoints(path / "checkpoints")):
        with suppress(CheckpointError, OSError):
            found: dict[str, Any] = read_manifest(entry.path)["meta"]
            return found
    return {}


def _saved(
    path: Path, counting: Mapping[str, Any], append: str | None, unknown: list[str] | None = None
) -> Config:
    """Return the settings of a run: those in `counting`, the rest from config.toml.

    Its stream is the file to `append`, or the last one of files.json.
    """
    view = load_config(path / SETTINGS, unknown=[] if unknown is None else unknown)
    learned = LearnedFiles(path).entries
    last = append or (learned[-1].path if learned else None)
    return replaced(view, {**counting, **({} if last is None else {"stream.path": last})})


def _check_stream(path: Path, now: str, stated: dict[str, Any]) -> None:
    """Refuse another file as the stream of a resumed run; ignore one that was learned before."""
    given: Any = stated.get("stream.path")
    if given in (each.path for each in LearnedFiles(path).entries):
        del stated["stream.path"]
        return
    if given is None or not now:
        return
    is_moved = Path(given).name == Path(now).name or Path(given).is_dir()
    if not is_moved and scheme_of(given) is scheme_of(now) is None:
        text = f"--stream: {path} learns {now}, not {given}; to learn that file after it: tgflow "
        raise ConfigError(f"{text}run --resume --out {path} --append {given}")


def _changes(
    path: Path, old: Mapping[str, Any], new: Mapping[str, Any], options: ResumeOptions
) -> list[SettingChange]:
    """Return the settings that differ, in the schema's order; ConfigError if one must not."""
    is_named = bool(old["stream.path"])  # otherwise a trainer with an in-memory stream
    changed = [
        SettingChange(each.key, each.effect, old[each.key], new[each.key])
        for each in fields()
        if old[each.key] != new[each.key]
        and each.key != "run.out"
        and (is_named or not each.key.startswith("stream."))
    ]
    effect = gravest(changed)
    if effect == "any_time" or (options.allow_change and effect != "fixed"):
        return changed
    may_allow = options.allow_change is not None
    shown = [each for each in changed if each.effect != "any_time"]
    flags = [flag_of(each.key) for each in shown]
    values = [f"{quote_json(x.old, most=40)} -> {quote_json(x.new, most=40)}" for x in shown]
    whats = [EFFECTS[each.effect] if may_allow else "" for each in shown]
    wide, wider = max(map(len, flags)), max(map(len, values))
    rows = zip(flags, values, whats, strict=True)
    lines = [f"  {flag:<{wide}}  {value:<{wider}}  {what}" for flag, value, what in rows]
    way_out = "omit them to resume unchanged, or give another --out"
    if may_allow and effect != "fixed":
        way_out += "; or pass --allow-config-change to accept the effects on the right"
    text = "\n".join(line.rstrip() for line in lines)
    raise ConfigError(f"{path} was started with other settings:\n{text}\n{way_out}")


def _say(text: str) -> None:
    sys.stderr.write(f"tgflow: {text}\n")
    sys.stderr.flush()


def learn_again(run: Path, rows: Path | str | None) -> str:
    """Describe how to relearn a run from its start after the edge features in `rows` are lost."""
    log, way = run / "log", "the log or the source"
    lost = [] if rows is None else [rows]
    if any(log.glob("*.log")) and not path_of(log, 0).exists():
        lost, way = [log, *lost], "the source"
    away = " and ".join(map(str, [run / "checkpoints", *lost]))
    return f"move {away} away and --resume, so that all is learned again from {way}"
