"""A trainer's graph in checkpoints: its events and mutations, and what its caches hold.

Events are the bulk of it and never change, so they are saved in sealed pieces, which a checkpoint
need not write again; the section `events` has the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tgflow.cache import CacheSnapshot
from tgflow.checkpoint import Checkpoint, Tensors, UntrustedCheckpoint
from tgflow.checkpoint.parts import Ids, pieces_of, put_pieces
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.events import COLUMNS, EventBatch, concat
from tgflow.graph import TemporalGraph, rebuild
from tgflow.graph.feature_scale import FeatureScale, FeatureScaling
from tgflow.graph.mutations import from_tensors, to_tensors
from tgflow.train.caches import caches_of

PIECE = 1 << 18
"""Events of a sealed piece: 8 MiB of columns."""


class Events:
    """The first `position` events of a graph, and the mutations of its past until then.

    Features are other parts (`FeatureRows`).

    Args:
        graph: To save: the graph. To load: an empty one without a table of edge features.
        position: How many events to save; None: all.
    """

    name = "events"

    def __init__(self, graph: TemporalGraph, position: int | None = None) -> None:
        self._graph = graph
        self._position = graph.num_events if position is None else position

    def save(self, writer: Checkpoint) -> None:
        """Save the events as views of the log, which nothing changes."""
        position = self._position
        rows, deleted = to_tensors(m for m in self._graph.mutations if m.position <= position)
        writer.note("position", position)
        writer.note("mutations", rows)
        writer.note("piece", PIECE)
        writer.put("mutations", deleted)
        put_pieces(writer, self.name, PIECE, position, self._columns)

    def _columns(self, start: int, stop: int) -> Tensors:
        events = self._graph.log.read(start, stop)
        columns = {name: getattr(events, name) for name in COLUMNS}
        return {name: column for name, column in columns.items() if column is not None}

    def load(self, reader: Checkpoint) -> None:
        """Append the events, and make the mutations where they were made.

        Raises:
            UntrustedCheckpoint: If events are among nodes that have no ids, where ids were saved:
                what a node has is made for all below.
        """
        size, stop = (read_natural(reader.meta, key) for key in ("piece", "position"))
        pieces = pieces_of(reader, self.name, max(size, 1), stop)
        events = concat([_events(piece) for piece in pieces])
        num_ids = Ids.num_saved(reader)
        if num_ids is not None:
            _check_nodes(events, num_ids)
        if len(events) != stop:
            raise ValueError(f"there are {len(events)} events, not {stop}")
        rows = read_as(list[list[Any]], reader.meta.get("mutations"), "mutations")
        mutations = from_tensors(rows, reader.get("mutations"))
        rebuild(self._graph, events, mutations)


def _events(piece: Tensors) -> EventBatch:
    names = [name for name, column in COLUMNS.items() if column.is_required or name in piece]
    columns: dict[str, Any] = {name: piece[name] for name in names}
    return EventBatch(**columns)


def _check_nodes(events: EventBatch, num_ids: int) -> None:
    for end, nodes in (("src", events.src), ("dst", events.dst)):
        if len(nodes) and (last := int(nodes.max())) >= num_ids:
            raise UntrustedCheckpoint(f"events.{end} has node {last}, and there are {num_ids} ids")


class CacheContents:
    """Which rows the caches of a graph's tables hold; the rows themselves are the tables'."""

    name = "caches"

    def __init__(self, graph: TemporalGraph) -> None:
        self._caches = caches_of(graph)

    def save(self, writer: Checkpoint) -> None:
        """Save the ids of the rows, and by what each cache orders them."""
        kinds = {}
        for name, cache in self._caches.items():
            held = cache.snapshot()
            writer.put(f"cache_{name}", {"ids": held.ids, "keys": held.keys}, volatile=True)
            kinds[name] = {"policy": cache.policy, "capacity": cache.capacity}
        writer.note(self.name, kinds)

    def load(self, reader: Checkpoint) -> None:
        """Let caches hold what they held; one of another policy or capacity starts empty."""
        for name, cache in self._caches.items():
            kind = {"policy": cache.policy, "capacity": cache.capacity}
            kinds = read_as(dict[str, Any], reader.meta.get(self.name, {}), self.name)
            if kinds.get(name) == kind:
                held = reader.get(f"cache_{name}")
                _check_contents(held["ids"], held["keys"], cache.capacity)
                cache.restore(CacheSnapshot(held["ids"], held["keys"]))


class Scaling:
    """What a graph's scales of features knew after its first `position` events.

    Args:
        graph: To save: the graph. To load: the graph that is to have the scales, if there are some.
        position: After how many events; None: all.
    """

    name = "feature_scale"
    of_nodes = "node_scale"

    def __init__(self, graph: TemporalGraph, position: int | None = None) -> None:
        self._graph = graph
        self._position = graph.num_events if position is None else position

    def save(self, writer: Checkpoint) -> None:
        """Save the settings and the figures."""
        graph, position = self._graph, self._position
        for name, scale, size in (
            (self.name, graph.feature_scale, position),
            (self.of_nodes, graph.node_scale, graph.num_node_rows(position)),
        ):
            if scale is not None:
                writer.note(name, {"kind": scale.kind, "freeze_at": scale.freeze_at})
                writer.put(name, scale.state_at(size))

    def load(self, reader: Checkpoint) -> None:
        """Give the graph the scales that were saved, if any were."""
        if (scale := _scale(reader, self.name)) is not None:
            self._graph.feature_scale = scale
        if (scale := _scale(reader, self.of_nodes)) is not None:
            self._graph.node_scale = scale


def _scale(reader: Checkpoint, name: str) -> FeatureScale | None:
    if name not in reader.meta:
        return None
    noted = read_as(dict[str, Any], reader.meta[name], name)
    kind: FeatureScaling = read_as(FeatureScaling, noted.get("kind"), f"{name}.kind")
    scale = FeatureScale(kind, max(1, read_natural(noted, "freeze_at")))
    try:
        scale.load(reader.get(name))
    except (KeyError, ValueError) as error:
        raise UntrustedCheckpoint(f"{name}: {error}") from None
    return scale


def _check_contents(ids: Tensor, keys: Tensor, capacity: int) -> None:
    for column in (ids, keys):
        if column.dtype != torch.int64 or column.shape != (capacity,):
            raise ValueError(
                f"a cache of {capacity} rows cannot hold {column.dtype} {list(column.shape)}"
            )
    held = ids[ids != -1]
    if bool((held < 0).any()) or len(set(held.tolist())) < len(held):
        raise ValueError("a cache holds rows that there are, each once")
