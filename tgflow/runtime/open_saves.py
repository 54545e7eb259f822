"""What an offline training or comparison keeps, with what its newest checkpoint has of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from tgflow.checkpoint.parts import SectionReader
from tgflow.compare.offline_saves import OfflineSaves, SavedPart
from tgflow.graph import TemporalGraph
from tgflow.runtime.checkpoint_parts import SavedSettings
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.log import RunLog
from tgflow.runtime.restore import Start, check_build, find_newest, open_store
from tgflow.runtime.saved_events import SavedEvents


class LoadedPart(SavedPart, Protocol):
    """What comes back from the checkpoints, too."""

    def load(self, reader: SectionReader) -> None:
        """Become what was saved."""

    def clear(self) -> None:
        """Begin: there is no checkpoint."""


def open_saves(
    directory: RunDirectory,
    graph: TemporalGraph,
    command: Literal["compare", "train"],
    build: dict[str, Any],
    run_log: RunLog,
    parts: Sequence[LoadedPart] = (),
) -> OfflineSaves:
    """Return what keeps what offline trainings come to, as its newest checkpoint has it.

    Args:
        directory: Taken.
        graph: All events.
        command: Whose run it is.
        build: The machine and versions that results depend on.
        run_log: Gets what was found.
        parts: What else belongs in the checkpoints; loaded, or cleared.

    Raises:
        ConfigError: If other settings are there.
        SourceMismatch: If the events are others than they were.
        StrictResume: If bits could differ, and the settings forbid that.
    """
    store, events = open_store(directory), SavedEvents(graph)
    newest = find_newest(store, directory, run_log)
    start = Start() if newest is None else Start.said_by(newest)
    if newest is not None:
        events.check(newest.meta, directory)
    for part in parts:
        if newest is None:
            part.clear()
        else:
            part.load(newest)
    check_build(start.build, build, directory.config, run_log)
    directory.accept_settings()
    path = directory.config.stream.path
    settings = SavedSettings(directory, build, path, elapsed=start.elapsed)
    return OfflineSaves(
        store,
        newest,
        every=directory.config.checkpoint.checkpoint_every,
        parts=[events, *parts, settings],
        command=command,
        warn=lambda text: run_log.warning("checkpoint", text),
    )
