"""Slow and obvious references of the native core, in plain Python.

Draws take large integers, lists for buckets and decimals for powers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from decimal import Context, Decimal

import torch
from torch import Tensor

from tgflow.base.choices import Direction
from tgflow.graph.events import NO_NODE, EventBatch
from tgflow.graph.sampling import Neighbors, Sampler

Item = tuple[int, int, int]
"""(t, eid, neighbor)."""
_WORD = 2**32
_NUM_BUCKETS = 30
_PRECISE = Context(prec=50)


class ReferenceGraph:
    """Per node a Python list of (t, eid, neighbor) in log order."""

    def __init__(self, events: EventBatch, direction: Direction = "undirected") -> None:
        self.size = len(events)
        self.relations = None if events.relation is None else events.relation.tolist()
        self.history: dict[int, list[Item]] = {}
        columns = (events.src.tolist(), events.dst.tolist(), events.t.tolist())
        for eid, (src, dst, t) in enumerate(zip(*columns, strict=True)):
            self.history.setdefault(src, []).append((t, eid, dst))
            if direction != "directed" and src != dst:
                self.history.setdefault(dst, []).append((t, eid, src))

    def seen(self, node: int, t: int, before: int) -> list[Item]:
        """Return the events of `node` before `t` and log position `before`, oldest first."""
        history = self.history.get(node, [])
        by_t = bisect_left(history, t, key=lambda entry: entry[0])
        by_eid = bisect_left(history, before, key=lambda entry: entry[1])
        return history[: min(by_t, by_eid)]

    def keeps(self, item: Item, relations: Collection[int] | None) -> bool:
        """Whether an entry's event is of one of `relations`."""
        return relations is None or (
            self.relations is not None and self.relations[item[1]] in relations
        )


def sample_neighbors(
    graph: ReferenceGraph,
    sampler: Sampler,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int = 0,
    as_of: int | Tensor | None = None,
    since: int = 0,
    relations: Collection[int] | None = None,
) -> Neighbors:
    """Sample like the function of `tgflow.graph.sampling` for `sampler`."""
    if as_of is None:
        as_of = graph.size
    limits = as_of.tolist() if isinstance(as_of, Tensor) else [as_of] * len(nodes)
    rows = []
    for row, (node, time, limit) in enumerate(zip(nodes.tolist(), t.tolist(), limits, strict=True)):
        seen = [item for item in graph.seen(node, time, limit) if item[1] >= since]
        if sampler.strategy == "window":
            assert sampler.span is not None
            seen = [item for item in seen if item[0] >= time - sampler.span]
        kept = [item for item in seen if graph.keeps(item, relations)]
        if sampler.strategy == "recent" or len(kept) <= k:
            rows.append(kept[-k:])
        elif sampler.strategy == "decayed":
            assert sampler.span is not None
            counts = [graph.keeps(item, relations) for item in seen]
            drawn = draw_decayed(key, row, [item[0] for item in seen], counts, k, sampler.span)
            rows.append([seen[i] for i in sorted(drawn)])
        else:
            rows.append([kept[i] for i in sorted(draw_distinct(key, row, len(kept), k))])
    return _neighbors(rows, k)


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


def draw_decayed(
    key: int, item: int, times: list[int], counts: list[bool], k: int, half_life: int
) -> set[int]:
    """Up to `k` positions of `times`, oldest first, that count."""
    drawn: set[int] = set()
    left = list(range(len(times)))[::-1]
    buckets: list[list[int]] = []
    attempt = 0
    while len(drawn) < k:
        if not buckets or left[0] in drawn:
            left = [i for i in left if i not in drawn]
            while left and not counts[left[0]]:
                left.pop(0)
            if not left:
                break
            buckets = _buckets(left, times, half_life)
        words = philox(key, (attempt % _WORD, attempt // _WORD, item % _WORD, item // _WORD))
        attempt += 1
        last = len(buckets) - 1
        weights = [len(bucket) * 2 ** (last - j) for j, bucket in enumerate(buckets)]
        place, low = divmod((words[1] * _WORD + words[0]) * sum(weights), _WORD**2)
        if low < _WORD**2 % sum(weights):
            continue
        j = 0
        while place >= weights[j]:
            place -= weights[j]
            j += 1
        i = buckets[j][place // 2 ** (last - j)]
        older = Decimal(times[left[0]] - times[i] - j * half_life)  # than the bucket's youngest
        power = _PRECISE.power(Decimal(2), -_PRECISE.divide(older, Decimal(half_life)))
        if counts[i] and words[3] * _WORD + words[2] < _WORD**2 * power:
            buckets[j].remove(i)
            drawn.add(i)
    return drawn


def _buckets(left: list[int], times: list[int], half_life: int) -> list[list[int]]:
    """Split positions, newest first, by age; the last bucket merges those below weight one."""
    buckets: list[list[int]] = []
    rest = left
    while len(rest) >= 2 ** len(buckets) and len(buckets) < _NUM_BUCKETS:
        oldest = times[left[0]] - (len(buckets) + 1) * half_life
        buckets.append([i for i in rest if times[i] > oldest])
        rest = rest[len(buckets[-1]) :]
    return [*buckets, rest]
