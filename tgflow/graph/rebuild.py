"""From a log and the record of its mutations back to the graph."""

from __future__ import annotations

from collections.abc import Iterable

from tgflow.events import EventBatch
from tgflow.graph.mutations import Mutation
from tgflow.graph.temporal_graph import TemporalGraph


def rebuild(graph: TemporalGraph, events: EventBatch, mutations: Iterable[Mutation]) -> None:
    """Append `events` to an empty `graph` and make the `mutations` at their positions.

    Raises:
        MemoryError: As the graph's methods raise it.
        ValueError: If the mutations are not those of a graph with these events.
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
