"""Multi-hop neighborhoods: one loop for plans and for direct sampling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from tgflow.base.choices import Strategy
from tgflow.base.describe import described
from tgflow.base.keys import KeyDomain, derive_key
from tgflow.cuda.device import Device
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.batch import Block, ReusedRows
from tgflow.graph.sampling.expand import Frontier, chain, distinct, expand, for_each_slot
from tgflow.graph.sampling.rows import column_on, sample_neighbors
from tgflow.graph.strategies import Sampler


@described
@dataclass(frozen=True, eq=False)
class Hops:
    """Result of `sample_hops`: frontiers of queries, and the blocks between them.

    `blocks[h]` leads from its targets, the rows of `frontiers[h]`, to their neighbors among the
    rows of `frontiers[h + 1]`. The layers of `tgflow.nn` take blocks.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> len(hops.frontiers), hops.blocks[0].mask.tolist()
        (3, [[True, True]])
    """

    roots: Tensor
    """int64 `[Q]`: the row of each query in `frontiers[0]`."""
    frontiers: tuple[Frontier, ...]
    """From the roots down; a model reads features of the last one's nodes."""
    links: tuple[Callable[[], Block], ...]
    """Functions that make the blocks."""

    def _facts(self) -> dict[str, object]:
        return {
            "num_queries": len(self.roots),
            "num_hops": len(self.links),
            "num_rows": tuple(map(len, self.frontiers)),
        }

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One block per hop; made on first access. Does not synchronize."""
        return tuple(link() for link in self.links)

    @property
    def inputs(self) -> Frontier:
        """The lowest frontier."""
        return self.frontiers[-1]


def sample_hops(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    fanouts: Sequence[int],
    *,
    sampler: Sampler | Strategy = "recent",
    key: int = 0,
    as_of: int | Tensor | None = None,
    since: int = 0,
    relations: Collection[int] | None = None,
    dedup: bool = False,
) -> Hops:
    """Sample neighbors, then theirs, each strictly before the event that reached it.

    Every hop's targets are sampled again in the next, beside their neighbors, as message passing
    requires: a layer's targets are also inputs of it.

    Args:
        graph: Graph to read; not modified.
        nodes: Query nodes, int64 `[Q]`; unknown ones are rows of the frontiers without neighbors,
            see `tgflow.sampling.recent_neighbors`.
        t: Query times in ticks, int64 `[Q]`.
        fanouts: Neighbors per query of each hop, from the roots down; at least one hop.
        sampler: Which neighbors are taken; or a name, for `recent` and `uniform`.
        key: Random key; each hop draws with a key of its own derived from it.
        as_of: See only events at log positions below this, one for all or int64 `[Q]`; neighbors
            inherit a query's cut-off. None: on the CPU, all hops see the events that exist at the
            start. On a GPU each hop sees the events that exist when it is launched, or, in a
            captured CUDA graph, when its kernel starts, so that replays see the store
            grow: if another thread appends, give `graph.num_events` for consistent
            hops.
        since: First log position of the horizon: earlier events are not seen.
        relations: Only events with one of these relations count.
        dedup: Whether equal queries of a frontier, (node, time) with `as_of` of each, are sampled
            once, and missing neighbors are omitted.

    Returns:
        The hops. Frontier `h + 1` has `1 + fanouts[h]` times the rows of frontier `h`; the CPU
        omits those that `dedup` saves, a GPU, to avoid synchronizing, fills them with
        `NO_NODE`. Does not synchronize.

    Raises:
        ValueError: If there are no fanouts, or for errors of the sampler.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> hops.frontiers[1].nodes.tolist()
        [0, 3, 2]
    """
    if not fanouts:
        raise ValueError("fanouts must name the neighbors of at least one hop, got none")
    if isinstance(sampler, str):
        sampler = Sampler(sampler)
    nodes, t = column_on("nodes", nodes, graph.device), column_on("t", t, graph.device)
    if not (as_of is None or isinstance(as_of, int)):
        as_of = column_on("as_of", as_of, graph.device)
    if t.shape != nodes.shape:
        raise ValueError(f"nodes and t must have one length, got {nodes.numel()} and {t.numel()}")
    if as_of is None and graph.gpu is None:
        as_of = graph.num_events
    each = as_of if isinstance(as_of, Tensor) else None
    roots, rows = Frontier(nodes, t, each), None
    if dedup:
        roots, rows = distinct(roots, graph.gpu)
    hops = hop_by_hop(
        graph.seconds_per_tick, graph.gpu, roots, fanouts, rows=rows, key=key, dedup=dedup,
        as_of=None if isinstance(as_of, Tensor) else as_of, since=since,
    )  # fmt: skip
    return walk_here(graph, hops, sampler, relations)


def walk_here(
    graph: TemporalGraph, walk: HopWalk, sampler: Sampler, relations: Collection[int] | None = None
) -> Hops:
    """Return the hops of a batch, from `hop_by_hop`, sampled from a graph."""
    return answer_walk(walk, lambda asked: asked.sampled(graph, sampler, relations))


@dataclass(frozen=True, slots=True, eq=False)
class HopQueries:
    """Queries of one hop; see `sample_neighbors`."""

    nodes: Tensor
    t: Tensor
    k: int
    key: int
    as_of: int | Tensor | None
    since: int
    out: Neighbors | None
    """Required output tensors; None: any."""
    params: Tensor | None

    def sampled(
        self, graph: TemporalGraph, sampler: Sampler, relations: Collection[int] | None = None
    ) -> Neighbors:
        """Return the neighbors in a graph."""
        return sample_neighbors(
            graph, sampler, self.nodes, self.t, self.k, key=self.key,
            as_of=self.as_of, since=self.since, relations=relations, out=self.out,
            params=self.params,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SomeNeighbors:
    """Neighbors of some targets of a hop below the first; others are not expanded."""

    at: Tensor
    """int64 `[n]`: expanded rows of the hop's frontier."""
    num_rows: int | None
    """Number of those rows with padding; None: without padding."""
    row: Tensor
    """int64 `[N]`: new place of each frontier row: among those of `at`, or behind."""
    neighbors: Neighbors
    """Neighbors of the expanded targets, padding included."""
    reused: ReusedRows
    """The other rows."""


HopWalk = Generator[HopQueries, Neighbors | SomeNeighbors, Hops]
"""The hops of one batch, as `hop_by_hop` yields them."""


def hop_by_hop(
    seconds_per_tick: float,
    gpu: Device | None,
    roots: Frontier,
    fanouts: Sequence[int],
    *,
    key: int,
    as_of: int | None,
    since: int,
    rows: Tensor | None = None,
    dedup: bool = True,
    by_time: bool = True,
    by_position: bool = True,
    params: Tensor | None = None,
) -> HopWalk:
    """Yield the queries of each hop, and continue with the neighbors sent; return the hops.

    The sender chooses the source of the neighbors: `walk_here` uses a local graph, and several
    batches, advanced one hop at a time together, can query other ranks. With `dedup` the roots are
    distinct, and results may be wider or narrower than the queries.

    The arguments are those of `sample_hops`. Without `as_of` a query sees events below its
    `position` or, where it has none, all. `rows` are the queries' rows in the roots. Rows of the
    lowest frontier that differ only in time stay separate `by_time`, and likewise `by_position`.
    `params`, on a GPU, are int64 `[H, 5]`, contiguous: per hop the values of `Queries.params`,
    which replace `key`, `since` and a number as `as_of`.
    """
    if rows is None:
        rows = torch.arange(len(roots), device=roots.nodes.device)
    frontiers: list[Frontier] = [roots]
    links: list[Callable[[], Block]] = []
    for hop, k in enumerate(fanouts):
        lowest = hop + 1 == len(fanouts)
        frontier = frontiers[-1]
        below, room = (None, None) if dedup else _below(frontier, k)
        found = yield HopQueries(
            frontier.nodes, frontier.t, k,
            key=derive_key(key, KeyDomain.HOP + hop),
            as_of=frontier.position if as_of is None else as_of,
            since=since,
            out=room,
            params=None if params is None else params[hop],
        )  # fmt: skip
        reused = None
        if isinstance(found, SomeNeighbors):
            links[-1] = partial(_renumbered, links[-1], found.row, frontiers[-2].num_used)
            frontier = frontiers[-1] = frontier.some(found.at, found.num_rows)
            reused = found.reused
            found = found.neighbors
        link: Callable[[], Block]
        if below is None:
            how = {"by_time": by_time or not lowest, "by_position": by_position or not lowest}
            block, below = expand(frontier, found, seconds_per_tick, gpu, **how)
            link = partial(_known, block if reused is None else replace(block, reused=reused))
        else:
            link = partial(chain, frontier, found, seconds_per_tick)
        frontiers.append(below)
        links.append(link)
    return Hops(rows, tuple(frontiers), tuple(links))


def answer_walk(walk: HopWalk, answer: Callable[[HopQueries], Neighbors | SomeNeighbors]) -> Hops:
    """Return the hops of a walk, with the neighbors that `answer` returns for each."""
    try:
        asked = next(walk)
        while True:
            asked = walk.send(answer(asked))
    except StopIteration as end:
        found: Hops = end.value
        return found


def _known(block: Block) -> Block:
    return block


def _renumbered(link: Callable[[], Block], row: Tensor, num_used: Tensor | None) -> Block:
    """Return a block with its frontier below reordered by `row`; missing slots have row 0."""
    block = link()
    target = row[block.target]
    if num_used is not None:
        target *= torch.arange(len(target), device=target.device) < num_used
    return replace(block, target=target, neighbor=row[block.neighbor] * block.mask)


def _below(frontier: Frontier, k: int) -> tuple[Frontier, Neighbors]:
    """Return the frontier below without deduplication, and the room in it for neighbors."""
    num, position = len(frontier), frontier.position
    nodes, t = _with_room(frontier.nodes, k), _with_room(frontier.t, k)
    if position is not None:
        position = torch.cat([position, for_each_slot(position, k)])
    room = Neighbors.empty(num, k, nodes.device)
    room.nodes, room.t = nodes[num:].view(num, k), t[num:].view(num, k)
    return Frontier(nodes, t, position), room


def _with_room(column: Tensor, k: int) -> Tensor:
    """Return `column` with room for `k` values each behind it, to be written in place."""
    longer = column.new_empty(len(column) * (1 + k))
    longer[: len(column)] = column
    return longer
