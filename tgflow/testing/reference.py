"""Slow and obvious references: what the native core must answer, in plain Python."""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor

from tgflow.events import NO_NODE, EventBatch
from tgflow.graph import Direction
from tgflow.sampling import Neighbors

_WORD = 2**32


class ReferenceGraph:
    """Per node a Python list of (t, eid, neighbour) in log order."""

    def __init__(self, events: EventBatch, direction: Direction = "undirected") -> None:
        self.size = len(events)
        self.history: dict[int, list[tuple[int, int, int]]] = {}
        columns = (events.src.tolist(), events.dst.tolist(), events.t.tolist())
        for eid, (src, dst, t) in enumerate(zip(*columns, strict=True)):
            self.history.setdefault(src, []).append((t, eid, dst))
            if direction != "directed" and src != dst:
                self.history.setdefault(dst, []).append((t, eid, src))

    def seen(self, node: int, t: int, before: int) -> list[tuple[int, int, int]]:
        """What a query at `t` that knows the events below `before` sees of `node`, oldest first."""
        history = self.history.get(node, [])
        by_t = bisect_left(history, t, key=lambda entry: entry[0])
        by_eid = bisect_left(history, before, key=lambda entry: entry[1])
        return history[: min(by_t, by_eid)]


def recent_neighbors(
    graph: ReferenceGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    before: int | Tensor | None = None,
) -> Neighbors:
    """As `tgflow.sampling.recent_neighbors`."""
    rows = []
    for node, time, limit in _queries(graph, nodes, t, before):
        rows.append(graph.seen(node, time, limit)[-k:])
    return _neighbors(rows, k)


def uniform_neighbors(
    graph: ReferenceGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int,
    before: int | Tensor | None = None,
) -> Neighbors:
    """As `tgflow.sampling.uniform_neighbors`."""
    rows = []
    for row, (node, time, limit) in enumerate(_queries(graph, nodes, t, before)):
        seen = graph.seen(node, time, limit)
        if len(seen) > k:
            seen = [seen[i] for i in sorted(draw_distinct(key, row, len(seen), k))]
        rows.append(seen)
    return _neighbors(rows, k)


def draw_distinct(key: int, item: int, size: int, k: int) -> set[int]:
    """Floyd's algorithm: `k` distinct numbers below `size`, each subset equally likely."""
    drawn: set[int] = set()
    for draw, top in enumerate(range(size - k, size)):
        number = draw_below(key, item, draw, top + 1)
        drawn.add(top if number in drawn else number)
    return drawn


def draw_below(key: int, item: int, draw: int, bound: int) -> int:
    """Draw number `draw` of `item`, in `[0, bound)`: Lemire's method over Philox."""
    attempt = 0
    while True:
        counter = (draw // 4, attempt, item % _WORD, item // _WORD)
        product = philox(key, counter)[draw % 4] * bound
        if product % _WORD >= _WORD % bound:
            return product // _WORD
        attempt += 1


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    k0, k1 = key % _WORD, key // _WORD
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = p1 // _WORD ^ c1 ^ k0, p1 % _WORD
        c2, c3 = p0 // _WORD ^ c3 ^ k1, p0 % _WORD
        k0, k1 = (k0 + 0x9E3779B9) % _WORD, (k1 + 0xBB67AE85) % _WORD
    return c0, c1, c2, c3


def _queries(
    graph: ReferenceGraph, nodes: Tensor, t: Tensor, before: int | Tensor | None
) -> list[tuple[int, int, int]]:
    if before is None:
        before = graph.size
    limits = before.tolist() if isinstance(before, Tensor) else [before] * len(nodes)
    return list(zip(nodes.tolist(), t.tolist(), limits, strict=True))


def _neighbors(rows: list[list[tuple[int, int, int]]], k: int) -> Neighbors:
    """Return rows of (t, eid, neighbour), oldest first, as padded tensors, newest first."""
    padded = []
    for row in rows:
        newest_first = [(nbr, t, eid) for t, eid, nbr in reversed(row)]
        padded.append(newest_first + [(NO_NODE, 0, -1)] * (k - len(row)))
    table = torch.tensor(padded, dtype=torch.int64).view(len(rows), k, 3)
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    nodes, t, eid = table.unbind(2)
    return Neighbors(nodes, t, eid, count)
