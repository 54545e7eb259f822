"""Slow and obvious references: what the native core must answer, in plain Python."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import torch
from torch import Tensor

from tgflow.choices import Direction
from tgflow.events import NO_NODE, EventBatch
from tgflow.sampling import Neighbors, Sampler
from tgflow.testing.draws import draw_decayed, draw_distinct

Item = tuple[int, int, int]
"""(t, eid, neighbor)."""


class ReferenceGraph:
    """Per node a Python list of (t, eid, neighbor) in log order."""

    def __init__(self, events: EventBatch, direction: Direction = "undirected") -> None:
        self.size = len(events)
        self.labels: list[int] | None = None if events.label is None else events.label.tolist()
        self.history: dict[int, list[Item]] = {}
        columns = (events.src.tolist(), events.dst.tolist(), events.t.tolist())
        for eid, (src, dst, t) in enumerate(zip(*columns, strict=True)):
            self.history.setdefault(src, []).append((t, eid, dst))
            if direction != "directed" and src != dst:
                self.history.setdefault(dst, []).append((t, eid, src))

    def seen(self, node: int, t: int, before: int) -> list[Item]:
        """What a query at `t` that knows the events below `before` sees of `node`, oldest first."""
        history = self.history.get(node, [])
        by_t = bisect_left(history, t, key=lambda entry: entry[0])
        by_eid = bisect_left(history, before, key=lambda entry: entry[1])
        return history[: min(by_t, by_eid)]

    def keeps(self, item: Item, types: Collection[int] | None) -> bool:
        """Whether an entry's event is of one of `types`."""
        return types is None or (self.labels is not None and self.labels[item[1]] in types)


def sample_neighbors(
    graph: ReferenceGraph,
    sampler: Sampler,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int = 0,
    as_of: int | Tensor | None = None,
    types: Collection[int] | None = None,
) -> Neighbors:
    """As the function of `tgflow.sampling` that `sampler` names."""
    if as_of is None:
        as_of = graph.size
    limits = as_of.tolist() if isinstance(as_of, Tensor) else [as_of] * len(nodes)
    rows = []
    for row, (node, time, limit) in enumerate(zip(nodes.tolist(), t.tolist(), limits, strict=True)):
        seen = graph.seen(node, time, limit)
        if sampler.strategy == "window":
            assert sampler.span is not None
            seen = [item for item in seen if item[0] >= time - sampler.span]
        kept = [item for item in seen if graph.keeps(item, types)]
        if sampler.strategy == "recent" or len(kept) <= k:
            rows.append(kept[-k:])
        elif sampler.strategy == "decayed":
            assert sampler.span is not None
            counts = [graph.keeps(item, types) for item in seen]
            drawn = draw_decayed(key, row, [item[0] for item in seen], counts, k, sampler.span)
            rows.append([seen[i] for i in sorted(drawn)])
        else:
            rows.append([kept[i] for i in sorted(draw_distinct(key, row, len(kept), k))])
    return _neighbors(rows, k)


def recent_neighbors(
    graph: ReferenceGraph, nodes: Tensor, t: Tensor, k: int, as_of: int | Tensor | None = None
) -> Neighbors:
    """As `tgflow.sampling.recent_neighbors`."""
    return sample_neighbors(graph, Sampler.recent(), nodes, t, k, as_of=as_of)


def uniform_neighbors(
    graph: ReferenceGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int,
    as_of: int | Tensor | None = None,
) -> Neighbors:
    """As `tgflow.sampling.uniform_neighbors`."""
    return sample_neighbors(graph, Sampler.uniform(), nodes, t, k, key=key, as_of=as_of)


def _neighbors(rows: list[list[Item]], k: int) -> Neighbors:
    """Return rows of (t, eid, neighbor), oldest first, as padded tensors, newest first."""
    padded = []
    for row in rows:
        newest_first = [(nbr, t, eid) for t, eid, nbr in reversed(row)]
        padded.append(newest_first + [(NO_NODE, 0, -1)] * (k - len(row)))
    table = torch.tensor(padded, dtype=torch.int64).view(len(rows), k, 3)
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    nodes, t, eid = table.unbind(2)
    return Neighbors(nodes, t, eid, count)
