"""Batches of several tasks prepared in one turn, whose questions other ranks answer together.

Where each rank has the neighbors of its own nodes, every hop waits for the others; so does whoever
reads memory or features of which each has a part. So the batches of several micro-batches, what is
predicted and what is learned from, ask together; and all ranks take the same turns, one thread
each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Protocol, TypeAlias

import torch

from tgflow.batch import Batch, Share
from tgflow.graph import TemporalGraph
from tgflow.peers import PeerLost, Peers, RanksDisagree
from tgflow.plan.assembly import RootColumns, assemble_hops, walk_of
from tgflow.plan.in_order import Task, batch_error, ordered_map
from tgflow.plan.pending import feature_inputs
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampling import Frontier, Sampler
from tgflow.sampling.hops import Hops, HopWalk, hop_by_hop, walk_here

KIND = "turns"
"""What going through counts as in `Traffic`: 8 bytes to each other rank, once a turn."""


class TurnsOver(Exception):
    """A rank takes no more turns, so there are none for the others."""


class TurnGate:
    """Through it the ranks go together before each turn, in the group "plan".

    A turn is prepared ahead of the training, so when all ranks stop after the same micro-batch some
    may have begun the next turn, and wait there for others that never will. Who stops leaves, and
    lets them go.

    Args:
        peers: The ranks.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._taking = threading.Lock()
        self._is_over = False

    @contextmanager
    def turn(self, num_tasks: int) -> Iterator[None]:
        """Enclose a turn; waits for all ranks.

        Args:
            num_tasks: Of the turn, at least 1, the same for all ranks.

        Raises:
            TurnsOver: If a rank has left, this one included.
            RanksDisagree: If another rank takes another turn.
            PeerLost: If one is gone.
        """
        with self._taking:
            said = [0] if self._is_over else self._gathered(num_tasks)
            if 0 in said:
                self._is_over = True
                raise TurnsOver
            self._check(said)
            yield

    def leave(self) -> None:
        """Take no more turns, as no other rank does; waits for all, and for one under way.

        Raises:
            PeerLost: If another rank is gone.
        """
        with self._taking:
            if not self._is_over:
                self._is_over = True
                self._gathered(0)

    def _gathered(self, num_tasks: int) -> list[int]:
        mine, sizes = torch.tensor([num_tasks]), [1] * self._peers.world
        said: list[int] = self._peers.gather(mine, sizes, kind=KIND, group="plan").tolist()
        return said

    def _check(self, said: list[int]) -> None:
        own = said[self._peers.rank]
        for rank, num_tasks in enumerate(said):
            if num_tasks != own:
                raise RanksDisagree(
                    f"rank {rank} prepares {num_tasks} batches at once, and rank "
                    f"{self._peers.rank} {own}: a stream must come to all ranks in the same batches"
                )


class Walker(Protocol):
    """Who answers what hops ask: `tgflow.distributed.asking.AskingSampler` is one."""

    def walk(self, walks: Iterable[HopWalk]) -> list[Hops]:
        """Return the hops of each batch, all of them taking a hop together."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WalksHere:
    """A `Walker` over a graph that has all neighbors: it asks nobody.

    Args:
        graph: Graph to read.
        sampler: Which neighbors are taken.
    """

    graph: TemporalGraph
    sampler: Sampler

    def walk(self, walks: Iterable[HopWalk]) -> list[Hops]:
        """Return the hops of each batch."""
        return [walk_here(self.graph, walk, self.sampler) for walk in walks]


AskState: TypeAlias = Callable[[Sequence[Iterable[Batch]]], Sequence[Callable[[], None]]]
"""What `tgflow.state.SpreadState.ask` is."""


class PlansByEpoch(Protocol):
    """Plans whose batches come side by side, such as those to predict and those to learn from."""

    def plan_of(self, epoch: int) -> PlanSpec:
        """Return the plan of the batches of an epoch."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SharePreparer:
    """Prepares shares of batches in host memory, in turns with other ranks.

    Args:
        plans: Of a graph, perhaps with a shard; plans that come side by side have as many hops.
        walker: Answers their hops; its sampler is theirs.
        wanted: The slices of each batch that are computed here.
        most: Slices of the rank that computes most of a batch: as many walks all ranks take.
        ask: Lets owners know what micro-batches read of the model's state; None: it is all here.
    """

    plans: PlansByEpoch
    walker: Walker
    wanted: range
    most: int
    ask: AskState | None = None

    def shares(self, turn: Sequence[Task]) -> list[Share]:
        """Return the wanted slices of each batch: the same as `Plan.share` of a whole graph.

        All ranks call it with the same turns. Features of all batches are gathered in one call.

        Args:
            turn: (epoch, index) of each batch.

        Raises:
            BatchError: If a batch cannot be prepared.
            PeerLost: If another rank is gone.
            RanksDisagree: If another one takes another turn.
        """
        try:
            drawn = [self._draw(task, number) for task in turn for number in self.wanted]
            batches = iter(self._batches(drawn, self.most * len(turn)))
            shares = [Share.of([*islice(batches, len(self.wanted))]) for _ in turn]
            return shares if self.ask is None else _fetching(shares, self.ask)
        except (PeerLost, RanksDisagree):
            raise
        except Exception as error:
            raise batch_error(turn[0], error) from error

    def _draw(self, task: Task, number: int) -> tuple[PlanSpec, Roots]:
        spec = self.plans.plan_of(task[0])
        return spec, spec.draw(task[0], task[1], number)

    def _batches(self, drawn: Sequence[tuple[PlanSpec, Roots]], num_walks: int) -> list[Batch]:
        """Return the batches of what was drawn, while other ranks prepare up to `num_walks`."""
        asked = [(spec, roots, RootColumns.on_host(roots)) for spec, roots in drawn]
        walks = [walk_of(*each) for each in asked]
        walks += [_nowhere(drawn[0][0]) for _ in range(num_walks - len(walks))]
        found = self.walker.walk(walks)
        pending = [assemble_hops(*each, hops) for each, hops in zip(asked, found, strict=False)]
        tables = feature_inputs(drawn[0][0].graph)
        rows = {table.name: table.gather_all(pending) for table in tables}
        return [
            batch.with_features({name: each[number] for name, each in rows.items()})
            for number, batch in enumerate(pending)
        ]


def _fetching(shares: Iterable[Share], ask: AskState) -> list[Share]:
    """Return shares that fetch what they read of a state: those of a micro-batch together."""
    groups = [[*group] for _, group in groupby(shares, key=lambda share: share.index)]
    read = [[batch for share in group for _, batch in share.computed()] for group in groups]
    return [
        replace(share, fetch=fetch)
        for group, fetch in zip(groups, ask(read), strict=True)
        for share in group
    ]


def _nowhere(spec: PlanSpec) -> HopWalk:
    """Return a walk that asks for nothing, beside those of other ranks."""
    nothing = torch.empty(0, dtype=torch.int64)
    roots = Frontier(nothing, nothing, nothing)
    seconds = spec.graph.seconds_per_tick
    return hop_by_hop(seconds, None, roots, spec.fanouts, key=0, as_of=0)


def shares_by_turns(
    turns: Iterable[Sequence[Task]],
    preparer: SharePreparer,
    gate: TurnGate,
    *,
    num_threads: int,
    ahead: int,
) -> Generator[Share]:
    """Yield the shares of each turn, in the order of their tasks.

    Turns are pulled lazily, and prepared by one thread, as all ranks must ask in one order. Left
    early, a thread that waits for other ranks is not waited for longer than a second.

    Args:
        turns: Tasks that are prepared together.
        preparer: Prepares them.
        gate: All ranks go through it turn by turn.
        num_threads: 0 prepares each turn when it is asked for; more are one.
        ahead: Turns that may be prepared or in preparation but not taken.
    """

    def shares_of(turn: Sequence[Task]) -> list[Share]:
        with gate.turn(len(turn)):
            return preparer.shares(turn)

    threads = min(num_threads, 1)
    made = ordered_map(shares_of, turns, num_threads=threads, lookahead=ahead, may_wait=True)
    with closing(made):
        for shares in made:
            yield from shares
