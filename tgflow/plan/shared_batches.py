"""Prepares batches of several tasks per turn, with batched queries to other ranks.

Where neighbors or memory are sharded, every read waits for the other ranks. So several
micro-batches send their queries together, and all ranks take the same turns, with one thread each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice

import torch

from tgflow.base.peers import PeerLost, Peers, RanksDisagree
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, Share
from tgflow.graph.sampling import Frontier, Sampler
from tgflow.graph.sampling.hops import Hops, HopWalk, hop_by_hop, walk_here
from tgflow.plan.assemble import assemble, walk_of
from tgflow.plan.draws import Draws, Roots
from tgflow.plan.in_order import Task, batch_error, ordered_map
from tgflow.plan.plan import Plan

KIND = "turns"
"""Kind of this barrier's cost in `Traffic`: 8 bytes to each other rank per turn."""


class TurnsOver(Exception):
    """Raised when a rank takes no more turns, so that no other rank can."""


class Barrier:
    """A barrier that all ranks pass before each turn, in the group "plan".

    Turns are prefetched during training: when all ranks stop after the same micro-batch, some
    already wait here for a turn that others never start. A rank that stops calls `leave`.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._taking = threading.Lock()
        self._is_over = False

    @contextmanager
    def turn(self, num_tasks: int) -> Iterator[None]:
        """Enclose a turn of `num_tasks`, at least 1; waits for all ranks."""
        with self._taking:
            sizes = [0] if self._is_over else self._gathered(num_tasks)
            if 0 in sizes:
                self._is_over = True
                raise TurnsOver
            for rank, size in enumerate(sizes):
                if size != num_tasks:
                    raise RanksDisagree(
                        f"rank {rank} prepares {size} batches at once, and rank "
                        f"{self._peers.rank} {num_tasks}: a stream must come to all ranks in the "
                        "same batches"
                    )
            yield

    def leave(self) -> None:
        """Stop taking turns, as all ranks do; waits for all ranks and for a running turn."""
        with self._taking:
            if not self._is_over:
                self._is_over = True
                self._gathered(0)

    def _gathered(self, num_tasks: int) -> list[int]:
        mine, sizes = torch.tensor([num_tasks]), [1] * self._peers.world
        found: list[int] = self._peers.gather(mine, sizes, kind=KIND, group="plan").tolist()
        return found


Walk = Callable[[Iterable[HopWalk]], list[Hops]]
"""Returns the hops of each batch, expanding all batches hop by hop together, as
`tgflow.ranks.sharded_sampling.ShardedSampler.walk` does."""


def walks_here(graph: TemporalGraph, sampler: Sampler) -> Walk:
    """Return the `Walk` over a graph that has all neighbors, without queries to other ranks."""
    return lambda walks: [walk_here(graph, walk, sampler) for walk in walks]


Count = Callable[[Sequence[tuple[Draws, Roots]]], list[tuple[Draws, Roots]]]
"""Adds the counts of drawn queries, as `tgflow.ranks.sharded_counts.ShardedCounts.counted` does."""
AskState = Callable[[Sequence[Iterable[Batch]]], Sequence[Callable[[], None]]]
"""Type of `tgflow.graph.stream_state.SpreadState.ask`."""


@dataclass(frozen=True, slots=True, eq=False)
class SharePreparer:
    """Prepares shares of batches in host memory, in turns with other ranks."""

    plan_of: Callable[[int], Plan]
    walk: Walk
    wanted: range
    """Slices of each batch that are computed here."""
    most: int
    """Largest number of slices per batch of any rank: all ranks take that many walks."""
    read_pairs: Callable[[int, int], None] | None = None
    """Reads the pairs of the events between positions, which draws need; None: draws do."""
    count: Count | None = None
    """Adds counts that are sharded; None: draws have them."""
    ask: AskState | None = None
    """Sends owners the reads of the model's state; None: all state is local."""

    def shares(self, turn: Sequence[Task]) -> list[Share]:
        """Return the wanted slices of each batch, equal to those of `Plan.batch` of a whole graph.

        All ranks must call it with the same turns; they take equally many walks.
        """
        try:
            tasks = [(self.plan_of(task[0]), task[:2]) for task in turn]
            if self.read_pairs is not None:
                spans = sorted(plan.draws.span(task[1]) for plan, task in tasks)
                graph = tasks[0][0].graph
                for since, some in groupby(spans, lambda span: graph.since(span[0])):
                    self.read_pairs(since, max(end for _, end in some))
            drawn = [(p.draws, p.draws.roots(*task, n)) for p, task in tasks for n in self.wanted]
            if self.count is not None:
                drawn = self.count(drawn)
            first, none = tasks[0][0].draws, torch.empty(0, dtype=torch.int64)
            nowhere = Frontier(none, none, none)
            walks = [walk_of(*each) for each in drawn]
            for _ in range(self.most * len(turn) - len(walks)):  # to match those of other ranks
                walk = hop_by_hop(
                    first.graph.seconds_per_tick,
                    None,
                    nowhere,
                    first.fanouts,
                    key=0,
                    as_of=0,
                    since=first.graph.forgotten,
                )
                walks.append(walk)
            batches = (
                assemble(of, roots, hops).gathered(of.graph)
                for (of, roots), hops in zip(drawn, self.walk(walks), strict=False)
            )
            shares = [Share.of([*islice(batches, len(self.wanted))]) for _ in turn]
            return shares if self.ask is None else _fetching(shares, self.ask)
        except (PeerLost, RanksDisagree):
            raise
        except Exception as error:
            raise batch_error(turn[0], error) from error


def _fetching(shares: Iterable[Share], ask: AskState) -> list[Share]:
    """Return shares that fetch the state they read, together per micro-batch."""
    groups = [[*group] for _, group in groupby(shares, key=lambda share: share.index)]
    read = [[batch for share in group for _, batch in share.computed()] for group in groups]
    pairs = zip(groups, ask(read), strict=True)
    return [replace(share, fetch=fetch) for group, fetch in pairs for share in group]


def shares_by_turns(
    turns: Iterable[Sequence[Task]],
    preparer: SharePreparer,
    gate: Barrier,
    *,
    num_threads: int,
    ahead: int,
) -> Generator[Share]:
    """Yield the shares of each turn, in the order of their tasks.

    Turns are pulled lazily and prepared by one thread, as all ranks must query in one order. If
    closed early, a thread that waits for other ranks is joined for at most a second.
    """

    def shares_of(turn: Sequence[Task]) -> list[Share]:
        with gate.turn(len(turn)):
            return preparer.shares(turn)

    threads = min(num_threads, 1)
    made = ordered_map(shares_of, turns, num_threads=threads, lookahead=ahead, may_wait=True)
    with closing(made):
        for shares in made:
            yield from shares
