"""Checkpoints of offline training and comparisons, opened at the newest one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.compare.offline_saves import OfflineSaves, SavedPart
from tgflow.graph import TemporalGraph
from tgflow.runtime.checkpoints import SavedSettings
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.log import RunLog
from tgflow.runtime.restore import Start, check_build, find_newest, open_store
from tgflow.streams.errors import SourceMismatch
from tgflow.tables.protocols import Table


class SavedEvents:
    """Which events models are trained and tested on, and features of which nodes.

    A checkpoint has none of them.

    Args:
        graph: Of all events.
    """

    def __init__(self, graph: TemporalGraph) -> None:
        self._num = graph.num_events
        events, digest = graph.log.read(0, graph.num_events), hashlib.sha256()
        for column in (events.src, events.dst, events.t):
            digest.update(column.numpy().data)
        self._digest = digest.hexdigest()
        self._of_nodes = None if graph.node_x is None else _digest_of(graph.node_x)

    def check(self, meta: Mapping[str, Any], directory: RunDirectory) -> None:
        """Raise SourceMismatch if a checkpoint was of other events, or features of nodes.

        Raises UntrustedCheckpoint if it says what is never saved.
        """
        num = read_natural(meta, "position")
        digest = read_as(str, meta.get("events_sha256"), "events_sha256")
        if (num, digest) != (self._num, self._digest):
            raise SourceMismatch(
                directory.config.stream.path,
                "schema",
                f"it has other events than when {directory.path} was started "
                f"({num:,} then, {self._num:,} now); bring them back, or give another --out",
            )
        if meta.get("node_x_sha256") != self._of_nodes:
            raise SourceMismatch(
                str(directory.config.graph.node_features),
                "schema",
                f"nodes have other features than when {directory.path} was started; bring the file "
                "back as it was, or give another --out",
            )

    def save(self, writer: Checkpoint) -> None:
        """Note how many there are, and their digest."""
        writer.note("position", self._num)
        writer.note("events_sha256", self._digest)
        writer.note("node_x_sha256", self._of_nodes)

    def saved(self) -> None:
        """Do nothing."""


def _digest_of(table: Table) -> str:
    return hashlib.sha256(table.read(0, len(table)).contiguous().numpy().data).hexdigest()


class LoadedPart(SavedPart, Protocol):
    """What comes back from the checkpoints, too."""

    def load(self, reader: Checkpoint) -> None:
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
    check_build(
        start.build, build, strict=directory.config.checkpoint.strict_resume, run_log=run_log
    )
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
