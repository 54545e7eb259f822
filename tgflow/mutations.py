"""Changes of a graph's past, as a record: with them and its log, a graph can be made again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from tgflow.events import EventBatch

if TYPE_CHECKING:
    from tgflow.graph import TemporalGraph

Kind = Literal["append_late", "delete", "delete_pair", "delete_node", "retain", "compact"]


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """A change of the past: what was asked for, and when."""

    position: int
    """Events that the log held; for late ones, before they were inserted."""
    kind: Kind
    """The method of `TemporalGraph`; late events came by `append`."""
    arguments: dict[str, int]
    """Its arguments; of late events how many (`size`)."""
    eid: Tensor | None = None
    """The events to delete, int64 `[N]`."""


def rebuild(graph: TemporalGraph, events: EventBatch, mutations: Iterable[Mutation]) -> None:
    """Append `events` to an empty `graph` and make `changes` at their positions.

    Raises:
        MemoryError: As the graph's methods raise it.
        ValueError: If the changes are not those of a graph with these events.
    """
    for number, mutation in enumerate(mutations):
        try:
            _make(graph, events, mutation)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"mutation {number}, {mutation.kind!r} at position {mutation.position}, cannot be "
                f"made of these {len(events)} events: {error!r}"
            ) from error
    graph.append(events[len(graph.log) :])


def _make(graph: TemporalGraph, events: EventBatch, mutation: Mutation) -> None:
    if not len(graph.log) <= mutation.position <= len(events):
        raise ValueError(f"its position must be from {len(graph.log)} to {len(events)}")
    graph.append(events[len(graph.log) : mutation.position])
    if mutation.kind == "append_late":
        end = mutation.position + mutation.arguments["size"]
        if not mutation.position < end <= len(events):
            raise ValueError(f"its events would end at {end}")
        graph.append(events[mutation.position : end], allow_late=True)
    elif mutation.eid is not None:
        graph.delete(mutation.eid)
    else:
        getattr(graph, mutation.kind)(**mutation.arguments)


def as_tensors(mutations: Iterable[Mutation]) -> tuple[list[list[Any]], dict[str, Tensor]]:
    """Return the changes as a checkpoint has them: what JSON can say, and the deleted events."""
    rows = []
    tensors = {}
    for number, mutation in enumerate(mutations):
        rows.append([mutation.position, mutation.kind, mutation.arguments])
        if mutation.eid is not None:
            tensors[str(number)] = mutation.eid
    return rows, tensors


def from_tensors(rows: list[list[Any]], tensors: dict[str, Tensor]) -> list[Mutation]:
    """Return the changes of which `as_tensors` told.

    Raises:
        ValueError: If a row is not of a mutation, or deletes events and does not say which.
    """
    mutations = []
    for number, (position, kind, arguments) in enumerate(rows):
        eid = tensors.get(str(number))
        if kind not in get_args(Kind) or (kind == "delete") != (eid is not None):
            raise ValueError(f"{kind!r} at position {position} is no change that can be made")
        if eid is not None and eid.dtype is not torch.int64:
            raise ValueError(
                f"the events deleted at position {position} are {eid.dtype}, not int64"
            )
        mutations.append(Mutation(position, kind, arguments, eid))
    return mutations
