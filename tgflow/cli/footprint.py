"""What each rank keeps in memory, with all of it and with its shard: measured, and scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgflow.report.formatting import num_bytes

_HEAD_BYTES = 8
_DESTINATION_BYTES = 24
"""A destination, its first event, and its number by node."""
_PAIR_BYTES = 48
"""A pair, its first event, and its place in a hash table that is a third full."""
_ID_BYTES = 56
"""An integer as the stream names a node, and its place in such a table."""
MOST_EVENTS = 2**33
"""Of a log, and of the store."""
MOST_NODES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Measured:
    """What a stream needs on one process, by which a larger one of its kind is judged."""

    num_events: int
    num_nodes: int
    num_destinations: int
    num_pairs: int
    store_bytes: int
    """Of the neighbors, heads of nodes included."""
    count_bytes: int
    """Of what a model counts of pairs."""
    memory_bytes: int
    """Of a node in the model's memory."""
    past_bytes: int
    """Of the versions of memory that replay needs, in all."""
    edge_bytes: int
    """Of an event's features."""
    parameter_bytes: int
    log_bytes: int
    """Of an event in the log."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Something that ranks hold: bytes of the rank that has most of it."""

    name: str
    whole: int
    """Where every rank has all of it."""
    shard: int | None = None
    """Where each has what it owns; None: every rank needs all of it."""
    is_rank_0_only: bool = False
    choice: str | None = None
    """Its place in the settings of ranks: graph, memory or edge_rows."""

    @property
    def least(self) -> int:
        """In shards, if it can be."""
        return self.whole if self.shard is None else self.shard


def structures(
    measured: Measured, world: int, *, num_events: int, num_nodes: int
) -> list[Structure]:
    """Return what each rank holds of a stream of this size, the largest last.

    Neighbors, features and pairs grow with the events, memory, heads and ids with the nodes.

    Args:
        measured: A stream of the same kind.
        world: How many ranks.
        num_events: Of the stream in question.
        num_nodes: Likewise.
    """
    m = measured
    per_event, per_node = num_events / m.num_events, num_nodes / m.num_nodes
    neighbors = (m.store_bytes - _HEAD_BYTES * m.num_nodes) * per_event + _HEAD_BYTES * num_nodes
    memory = m.memory_bytes * num_nodes + m.past_bytes
    edges = m.edge_bytes * num_events
    destinations = _DESTINATION_BYTES * m.num_destinations * per_node

    def sharded(name: str, num_bytes: float, choice: str) -> Structure:
        return Structure(name, round(num_bytes), -(-round(num_bytes) // world), choice=choice)

    found = [
        Structure("event log", m.log_bytes * num_events),
        Structure("destinations", round(destinations)),
        Structure("distinct pairs", round(_PAIR_BYTES * m.num_pairs * per_event)),
        Structure("counts of pairs", round(m.count_bytes * per_event)),
        Structure("parameters and optimizer", 4 * m.parameter_bytes),
        Structure("node ids", _ID_BYTES * num_nodes, is_rank_0_only=True),
        sharded("neighbors", neighbors, "graph"),
        sharded("node memory", memory, "memory"),
        sharded("edge features", edges, "edge_rows"),
    ]
    return [each for each in found if each.whole]


def total_bytes(found: Sequence[Structure], *, sharded: bool) -> int:
    """Return what rank 0, which holds most, has of all structures, in shards or not."""
    return sum(each.least if sharded else each.whole for each in found)


def misfits(
    found: Sequence[Structure], *, num_events: int, num_nodes: int, limit: int
) -> list[str]:
    """Return what does not fit in `limit` bytes a rank, and other bounds that are met: sentences.

    Nothing is said of what fits in shards; that is a choice.
    """
    texts = []
    if num_events > MOST_EVENTS:
        texts.append(
            f"a log holds at most 2^33 events ({MOST_EVENTS / 1e9:.1f} thousand million), and "
            f"these are {num_events / 1e9:.3g} thousand million"
        )
    if num_nodes > MOST_NODES:
        texts.append(f"there can be at most 2^31 - 1 nodes, and these are {num_nodes:.3g}")
    least = total_bytes(found, sharded=True)
    if least > limit:
        texts.append(
            f"rank 0 needs {num_bytes(least)}, in shards too, and has {num_bytes(limit)}; most is:"
        )
        largest = sorted(found, key=lambda each: each.least, reverse=True)
        texts += [_said(each) for each in largest if each.least > limit / len(found)]
    return texts


def _said(each: Structure) -> str:
    where = "on rank 0" if each.is_rank_0_only else "on every rank"
    how = f"all of it {where}" if each.shard is None else "each rank its shard"
    return f"{each.name}: {num_bytes(each.least)}, {how}"
