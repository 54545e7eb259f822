"""What the samplers are asked: calls of many queries each, made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tgflow.bench.grown import Grown
from tgflow.bench.turns import take_turns
from tgflow.events import EventBatch
from tgflow.sampling import Neighbors

K = 10
CALL = 3000
"""Queries a call: a thousand events, three roots each."""
ROOTS = 600
"""Queries of a batch of 200 events."""

Queries = Sequence[tuple[Tensor, Tensor]]
Sample = Callable[[Tensor, Tensor], Neighbors]


def random_queries(num_nodes: int, stop: int, calls: int, size: int = CALL) -> Queries:
    """Return calls for random nodes at random times: memory that no earlier query has touched."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, num_nodes, (size,), generator=generator),
            torch.randint(0, stop, (size,), generator=generator),
        )
        for _ in range(calls)
    ]


def end_queries(grown: Grown, calls: int, size: int = CALL) -> Queries:
    """Return calls for the ends of random events at their times: as training asks, but shuffled."""
    generator = torch.Generator().manual_seed(2)
    queries = []
    for _ in range(calls):
        eid = torch.randint(0, grown.num_events, (size // 2,), generator=generator)
        events = grown.graph.log.gather(eid)
        queries.append((torch.cat([events.src, events.dst]), events.t.repeat(2)))
    return queries


def chronological(events: EventBatch, batch_size: int) -> Queries:
    """Return, per batch of events, the roots to sample: sources, destinations, random negatives."""
    generator = torch.Generator().manual_seed(0)
    destinations = torch.unique(events.dst)
    queries = []
    for start in range(0, len(events), batch_size):
        batch = events[start : start + batch_size]
        pick = torch.randint(0, len(destinations), (len(batch),), generator=generator)
        nodes = torch.cat([batch.src, batch.dst, destinations[pick]])
        queries.append((nodes, batch.t.repeat(3)))
    return queries


def on(device: torch.device, queries: Queries) -> Queries:
    """Return the queries where a graph on `device` wants them."""
    return [(nodes.to(device), t.to(device)) for nodes, t in queries]


def race_of(
    methods: Sequence[tuple[Sample, Queries]], rounds: int, device: str = "cpu"
) -> list[float]:
    """Return the seconds that each method needs for all its calls, in turns call by call."""

    def call(method: Sample, queries: Queries) -> Callable[[int], Neighbors]:
        return lambda i: method(*queries[i])

    named = {str(i): call(*method) for i, method in enumerate(methods)}
    seconds = take_turns(named, len(methods[0][1]), rounds, device)
    return [float(each.sum()) for each in seconds.values()]
