"""Neighborhoods of several hops: one loop, for plans and for whoever samples by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from tgflow.batch import Block, ReusedRows
from tgflow.choices import Strategy
from tgflow.cuda.device import Device
from tgflow.describe import described
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.keys import KeyDomain, derive_key
from tgflow.sampler import Sampler
from tgflow.sampling.expand import Frontier, chain, distinct, expand, for_each_slot
from tgflow.sampling.rows import sample_neighbors


@described
@dataclass(frozen=True, eq=False)
class Hops:
    """What `sample_hops` returns: frontiers of queries, and the blocks that lead down them.

    `blocks[h]` leads from its targets, the rows of `frontiers[h]`, to their neighbors among the
    rows of `frontiers[h + 1]`. It is what the layers of `tgflow.nn` take.

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
    """What makes the blocks."""

    def _facts(self) -> dict[str, object]:
        return {
            "num_queries": len(self.roots),
            "num_hops": len(self.links),
            "num_rows": tuple(map(len, self.frontiers)),
        }

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One a hop; made when they are first asked for. Does not synchronize."""
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
    types: Collection[int] | None = None,
    dedup: bool = False,
) -> Hops:
    """Sample neighbors, then theirs, each strictly before the event by which it was reached.

    Every hop's targets are sampled again in the next, beside their neighbors, as message passing
    wants it: a layer's targets are then inputs of it too.

    Args:
        graph: Graph to read; not modified.
        nodes: Query nodes, int64 `[Q]`.
        t: Query times in ticks, int64 `[Q]`.
        fanouts: Neighbors per query of each hop, from the roots down; at least one hop.
        sampler: Which neighbors are taken; a name will do for `recent` and `uniform`.
        key: Random key; each hop draws with a key of its own derived from it.
        as_of: See only events at log positions below this, one for all or int64 `[Q]`: what is
            reached from a query has its cut-off. None: on the CPU, all hops see the events there
            are at the start. On a GPU each hop sees those there are when it is asked, and in a
            captured CUDA graph those there are when its kernel begins, so that replays see the
            store grow: beside another thread that appends, give `graph.num_events` for hops that
            agree.
        types: Only events with one of these labels count.
        dedup: Whether equal queries of a frontier, (node, time) with `as_of` of each, are sampled
            once, and missing neighbors are left out of it.

    Returns:
        The hops. Frontier `h + 1` has `1 + fanouts[h]` times the rows of frontier `h`; the CPU
        leaves out those that `dedup` saves, a GPU, which is not waited for, fills them with
        `NO_NODE`. Does not synchronize.

    Raises:
        ValueError: If there are no fanouts, or as the sampler raises.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> hops.frontiers[1].nodes.tolist()
        [0, 3, 2]
    """
    if not fanouts:
        raise ValueError("fanouts must name the neighbors of at least one hop, got none")
    if isinstance(sampler, str):
        sampler = Sampler(sampler)
    if as_of is None and graph.gpu is None:
        as_of = graph.num_events
    each = as_of if isinstance(as_of, Tensor) else None
    roots, rows = Frontier(nodes, t, each), None
    if dedup:
        roots, rows = distinct(roots, graph.gpu)
    hops = hop_by_hop(
        graph.seconds_per_tick, graph.gpu, roots, fanouts, rows=rows, key=key, dedup=dedup,
        as_of=None if isinstance(as_of, Tensor) else as_of,
    )  # fmt: skip
    return walk_here(graph, hops, sampler, types)


def walk_here(
    graph: TemporalGraph, walk: HopWalk, sampler: Sampler, types: Collection[int] | None = None
) -> Hops:
    """Return the hops of a batch, whose answers are those of the graph at hand.

    Args:
        graph: Graph to read.
        walk: As `hop_by_hop` yields it.
        sampler: Which neighbors are taken.
        types: Only events with one of these labels count.
    """
    return answer_walk(walk, lambda asked: asked.sampled(graph, sampler, types))


@dataclass(frozen=True, slots=True, eq=False)
class HopQueries:
    """What a hop asks about neighborhoods; see `sample_neighbors`."""

    nodes: Tensor
    t: Tensor
    k: int
    key: int
    as_of: int | Tensor | None
    out: Neighbors | None
    """Where the answers must be; None: anywhere."""
    params: Tensor | None

    def sampled(
        self, graph: TemporalGraph, sampler: Sampler, types: Collection[int] | None = None
    ) -> Neighbors:
        """Return the answer of a graph."""
        return sample_neighbors(
            graph, sampler, self.nodes, self.t, self.k, key=self.key,
            as_of=self.as_of, types=types, out=self.out, params=self.params,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SomeNeighbors:
    """An answer for some of a hop's targets, of a hop below the first; others are not expanded."""

    at: Tensor
    """int64 `[n]`: which rows of the hop's frontier are expanded."""
    num_rows: int | None
    """How many rows those are with padding; None: there is none."""
    row: Tensor
    """int64 `[N]`: where each row of the frontier is now: at the places of `at`, or behind."""
    neighbors: Neighbors
    """Of the targets that are expanded, padding included."""
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
    rows: Tensor | None = None,
    dedup: bool = True,
    by_time: bool = True,
    by_position: bool = True,
    params: Tensor | None = None,
) -> HopWalk:
    """Yield what each hop asks, and go on with the answers that are sent; return the hops.

    Whatever sends them chooses where they come from: `walk_here` asks the graph at hand, and hops
    of several batches, one step of each at a time, can ask elsewhere together. With `dedup` answers
    may be wider or narrower than what was asked for.

    Args:
        seconds_per_tick: Length of a tick.
        gpu: Where the queries are; None: on the CPU.
        roots: The first hop's targets, distinct where `dedup`.
        fanouts: Neighbors per query of each hop; may be none.
        key: Of all hops' draws.
        as_of: See only events at log positions below this. None: below each query's `position`, or
            where it has none, all.
        rows: The row of each query in the roots; None: the queries are its rows.
        dedup: Whether each frontier holds equal queries once.
        by_time: Whether rows of the lowest frontier that differ only in time are kept apart.
        by_position: Whether those that differ only in position are.
        params: On a GPU int64 `[H, 3]`, contiguous: of each hop the cut-off for all, the key and
            how many queries are in use, see `Queries.params`; they then stand for `key` and a
            number as `as_of`.
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
            block, below = expand(
                frontier,
                found,
                seconds_per_tick,
                gpu,
                by_time=by_time or not lowest,
                by_position=by_position or not lowest,
            )
            link = partial(_known, block if reused is None else replace(block, reused=reused))
        else:
            link = partial(chain, frontier, found, seconds_per_tick)
        frontiers.append(below)
        links.append(link)
    return Hops(rows, tuple(frontiers), tuple(links))


def answer_walk(walk: HopWalk, answer: Callable[[HopQueries], Neighbors | SomeNeighbors]) -> Hops:
    """Return the hops of a walk, each of which `answer` gives the neighbors of."""
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
    """Return a block whose frontier below has got another order; what is missing has row 0."""
    block = link()
    target = row[block.target]
    if num_used is not None:
        target *= torch.arange(len(target), device=target.device) < num_used
    return replace(block, target=target, neighbor=row[block.neighbor] * block.mask)


def _below(frontier: Frontier, k: int) -> tuple[Frontier, Neighbors]:
    """Return the frontier below one all of whose slots get rows, and the room in it for them."""
    num, position = len(frontier), frontier.position
    nodes, t = _with_room(frontier.nodes, k), _with_room(frontier.t, k)
    if position is not None:
        position = torch.cat([position, for_each_slot(position, k)])
    room = Neighbors.empty(num, k, nodes.device)
    room.nodes, room.t = nodes[num:].view(num, k), t[num:].view(num, k)
    return Frontier(nodes, t, position), room


def _with_room(column: Tensor, k: int) -> Tensor:
    """Return `column` and, behind it, room for `k` values each: written in place, not copied."""
    longer = column.new_empty(len(column) * (1 + k))
    longer[: len(column)] = column
    return longer
