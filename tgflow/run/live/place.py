"""The directory of a run: begun, gone on with, or refused; and never two processes in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tgflow.config import Config, ConfigError, load_config
from tgflow.durable.lock import RunLock
from tgflow.run.live import settings
from tgflow.run.live.settings import Change, Effect
from tgflow.run.rundir import RunDir

LOCK, SETTINGS = ".lock", "config.toml"
OWN = frozenset({LOCK, "run.log", "run.log.1", "health.json", ".health.json.partial"})
"""Files that a run leaves before it has begun."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for.

    Args:
        resume: Go on with the run that is there.
        fresh: Start over if that cannot be gone on with.
        allow_change: Go on also with other settings.
        stated: The settings that were asked for, by "section.key"; others are as they were.
    """

    resume: bool = False
    fresh: bool = False
    allow_change: bool = False
    stated: Mapping[str, Any] | None = None


class Place:
    """A run directory that this process has to itself; a context manager.

    Args:
        rundir: The directory.
        config: The settings to run with.
        changed: In what they differ from those that the run began with.
        goes_on: Whether there is a run to go on with.
        lock: Held until the place is left.
    """

    def __init__(
        self,
        rundir: RunDir,
        config: Config,
        changed: list[Change],
        goes_on: bool,
        lock: RunLock | None,
    ) -> None:
        self.rundir, self.config, self.changed = rundir, config, changed
        self.goes_on = goes_on
        self._lock = lock

    @classmethod
    def find(cls, config: Config, name: str, wish: Wish) -> Place:
        """Return where to run and with which settings; nothing is changed there yet.

        Args:
            config: Settings asked for, defaults included.
            name: What the run is called where `config` names no directory.
            wish: What else was asked for.

        Raises:
            ConfigError: If the run that is there has other settings.
            FileExistsError: If there are files and they are not to be gone on with, or are no run.
            Locked: If another process has the run.
        """
        if not wish.resume:
            return cls(RunDir.choose(config.run.out, name, OWN), config, [], False, None)
        if config.run.out is None:
            raise ConfigError("--resume needs the run's directory: --resume --out runs/NAME")
        path = Path(config.run.out)
        if not (path / SETTINGS).exists():
            return cls(RunDir.choose(config.run.out, name, OWN), config, [], False, None)
        lock = RunLock(path / LOCK)
        try:
            wanted, changed = _settled(path, config, wish)
        except BaseException:
            lock.release()
            raise
        return cls(RunDir(path, goes_on=True), wanted, changed, True, lock)

    @property
    def path(self) -> Path:
        """The directory."""
        return self.rundir.path

    @property
    def effect(self) -> Effect:
        """What the changed settings do."""
        return settings.gravest(self.changed)

    def __enter__(self) -> Self:
        """Take the directory.

        Raises:
            Locked: If another process has it.
            OSError: If it cannot be made, or not be written to.
        """
        self.rundir.make()
        if self._lock is None:
            self._lock = RunLock(self.path / LOCK)
        self.rundir.write_config(self.config)  # which also tells whether one can write here
        return self

    def __exit__(self, *error: object) -> None:
        self.rundir.close()
        if self._lock is not None:
            self._lock.release()

    def start_over(self) -> Path:
        """Move all that is there into before-1/, before-2/, ..., and return that."""
        number = 1
        while (aside := self.path / f"before-{number}").exists():
            number += 1
        self.rundir.close()
        aside.mkdir()
        for entry in self.path.iterdir():
            if not entry.name.startswith("before-") and entry.name not in OWN:
                entry.rename(aside / entry.name)
        self.rundir.write_config(self.config)
        self.goes_on = False
        return aside


def _settled(path: Path, config: Config, wish: Wish) -> tuple[Config, list[Change]]:
    """Return the settings to go on with, and in what they differ from those of the run.

    Raises:
        ConfigError: If they differ in what matters, and that was not allowed.
    """
    saved = load_config(path / SETTINGS)
    wanted = load_config(path / SETTINGS, wish.stated)
    wanted = wanted.model_copy(
        update={"run": wanted.run.model_copy(update={"out": config.run.out})}
    )
    changed = settings.changes(saved, wanted)
    if settings.gravest(changed) != "free" and not wish.allow_change:
        lines = "\n".join(settings.table(changed))
        raise ConfigError(
            f"{path} was begun with other settings:\n{lines}\nleave them out to go on as it was, "
            "choose another --out, or pass --allow-config-change to do what is said on the right"
        )
    return wanted, changed
