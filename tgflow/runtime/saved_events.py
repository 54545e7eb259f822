"""Which events and nodes models are trained on offline, where checkpoints have none of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tgflow.checkpoint.parts import SectionWriter
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.graph import TemporalGraph
from tgflow.runtime.directory import RunDirectory
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

    def save(self, writer: SectionWriter) -> None:
        """Note how many there are, and their digest."""
        writer.note("position", self._num)
        writer.note("events_sha256", self._digest)
        writer.note("node_x_sha256", self._of_nodes)

    def saved(self) -> None:
        """Do nothing."""


def _digest_of(table: Table) -> str:
    return hashlib.sha256(table.read(0, len(table)).contiguous().numpy().data).hexdigest()
