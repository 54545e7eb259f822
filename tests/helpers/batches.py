"""Batches made the slow, obvious way: what a plan must come to, for tests of models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgflow.batch import Batch, Block, HostEvents
from tgflow.events import EventBatch

Row = tuple[int, int]
"""A node, and the tick (or, in the lowest frontier, the log position) at which it is wanted."""
Slot = tuple[int, int, int]
"""A neighbor, its event's tick and its event."""


def slow_batch(
    events: EventBatch,
    index: int,
    batch_size: int,
    fanouts: Sequence[int],
    *,
    num_negatives: int = 1,
    node_x: Tensor | None = None,
    replayed: Sequence[int] = (),
    seconds_per_tick: float = 1.0,
) -> Batch:
    """Return batch `index` of an undirected stream, with recent neighbors as of the batch's start.

    Args:
        events: The whole stream; what comes after the batch is never read.
        index: The batch.
        batch_size: Events per batch; the last batch may have fewer.
        fanouts: Neighbors per hop, at least one hop.
        num_negatives: Random destinations per event, from those seen so far.
        node_x: Features of the first nodes, float32 `[N, node_x_dim]`.
        replayed: Earlier events to append, each seen from its own batch's start.
        seconds_per_tick: The stream's unit.
    """
    begin = index * batch_size
    new = list(range(begin, min(begin + batch_size, len(events))))
    eids = new + list(replayed)
    before = [eid // batch_size * batch_size for eid in eids]
    src, dst, t = (column[eids].tolist() for column in (events.src, events.dst, events.t))
    generator = torch.Generator().manual_seed(index)
    stop = max(new[-1] + 1 if new else 0, 1)
    known = torch.tensor(sorted(set(events.dst[:stop].tolist())), dtype=torch.int64)
    pick = torch.randint(max(len(known), 1), (len(eids), num_negatives), generator=generator)
    negative = known[pick].tolist()

    # A frontier row is (node, tick, cut-off); the cut-off is what a plan keeps per query.
    frontier: dict[tuple[int, int, int], int] = {}

    def row(node: int, tick: int, cut: int) -> int:
        return frontier.setdefault((node, tick, cut), len(frontier))

    src_row = [row(v, at, cut) for v, at, cut in zip(src, t, before, strict=True)]
    dst_row = [row(v, at, cut) for v, at, cut in zip(dst, t, before, strict=True)]
    negative_row = [
        [row(v, at, cut) for v in vs] for vs, at, cut in zip(negative, t, before, strict=True)
    ]
    edges: dict[int, int] = {}
    blocks: list[Block] = []
    below: dict[tuple[int, int, int], int]
    for hop, k in enumerate(fanouts):
        targets, below = list(frontier), {}
        lowest = hop == len(fanouts) - 1
        blocks.append(_block(events, targets, below, edges, k, lowest, seconds_per_tick))
        frontier = below
    table = None
    if events.x is not None:
        table = torch.cat([torch.zeros(1, events.x_dim), events.x[list(edges)]])
    blocks = [_with_edges(block, table) for block in blocks]
    src_t, dst_t, at_t = events.src[eids], events.dst[eids], events.t[eids]
    eid, wide = _ints(eids), (len(eids), num_negatives)
    return Batch(
        epoch=0,
        index=index,
        num_new=len(new),
        seconds_per_tick=seconds_per_tick,
        eid=eid,
        src=src_t,
        dst=dst_t,
        t=at_t,
        host=HostEvents(eid, src_t, dst_t, at_t, begin, begin + len(new)),
        x=None if events.x is None else events.x[eids],
        negative_src=src_t.unsqueeze(1).expand(wide),
        negative_dst=_ints(negative).view(wide),
        src_row=_ints(src_row),
        dst_row=_ints(dst_row),
        negative_src_row=_ints(src_row).unsqueeze(1).expand(wide),
        negative_dst_row=_ints(negative_row).view(wide),
        blocks=tuple(blocks),
        nodes=_ints([node for node, _, _ in frontier]),
        position=_ints([cut for _, _, cut in frontier]),
        node_x=None if node_x is None else node_rows(node_x, [node for node, _, _ in frontier]),
    )


def node_rows(node_x: Tensor, nodes: Sequence[int]) -> Tensor:
    """Return the features of `nodes`, zeros for those beyond the end of `node_x`."""
    zeros = torch.zeros(node_x.shape[1])
    rows = [node_x[node] if node < len(node_x) else zeros for node in nodes]
    return torch.stack(rows) if rows else node_x[:0]


def neighbors(events: EventBatch, node: int, tick: int, before: int, k: int) -> list[Slot]:
    """Return up to `k` neighbors strictly before a tick and a log position, newest first."""
    found: list[Slot] = []
    for eid in reversed(range(min(before, len(events)))):
        a, b, t = int(events.src[eid]), int(events.dst[eid]), int(events.t[eid])
        if t < tick and node in (a, b) and len(found) < k:
            found.append((b if a == node else a, t, eid))
    return found


def _block(
    events: EventBatch,
    targets: list[tuple[int, int, int]],
    below: dict[tuple[int, int, int], int],
    edges: dict[int, int],
    k: int,
    lowest: bool,
    seconds_per_tick: float,
) -> Block:
    def row(node: int, tick: int, cut: int) -> int:
        return below.setdefault((node, 0 if lowest else tick, cut), len(below))

    size = len(targets)
    target = [row(*key) for key in targets]
    neighbor, eid, edge_row = (torch.zeros(size, k, dtype=torch.int64) for _ in range(3))
    mask, dt = torch.zeros(size, k, dtype=torch.bool), torch.zeros(size, k)
    eid.fill_(-1)
    for i, (node, tick, cut) in enumerate(targets):
        for j, (other, t, event) in enumerate(neighbors(events, node, tick, cut, k)):
            neighbor[i, j], eid[i, j], mask[i, j] = row(other, t, cut), event, True
            dt[i, j] = (tick - t) * seconds_per_tick
            edge_row[i, j] = edges.setdefault(event, len(edges)) + 1
    return Block(_ints(target), neighbor, mask, dt, eid, edge_row, None)


def _with_edges(block: Block, table: Tensor | None) -> Block:
    return Block(
        block.target, block.neighbor, block.mask, block.dt, block.eid, block.edge_row, table
    )


def _ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
