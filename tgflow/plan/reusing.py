"""Batches that take rows from those before them: what each takes is decided one after the other.

Threads draw the roots of batches and sample what their rows are made of, hop by hop. Before a hop
is sampled whose rows may be reused, batches pass one by one, in their order, and those of their
rows that are taken leave the frontier: they are neither sampled nor gathered, and a cache that
plans ahead does not hear of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.plan.assembly import RootColumns, assemble_hops, walk_of
from tgflow.plan.copying import CopyingPreparer
from tgflow.plan.device_batches import DeviceBatches, OwnedBatches
from tgflow.plan.in_order import ordered_map, until_failure
from tgflow.plan.padding import rounded
from tgflow.plan.pending import PendingBatch
from tgflow.plan.plan import Plan
from tgflow.plan.preparer import with_features
from tgflow.plan.reuse import HopReuse, ReuseChoice
from tgflow.plan.spec import Roots
from tgflow.plan.task import run_task
from tgflow.sampling import Frontier
from tgflow.sampling.hops import HopQueries, Hops, SomeNeighbors
from tgflow.sampling.rows import sample_neighbors


class Walk:
    """The hops of one batch, taken one by one.

    Args:
        plan: Whose batch.
        epoch: Of the batch.
        index: Of the batch.
    """

    def __init__(self, plan: Plan, epoch: int, index: int) -> None:
        self._plan = plan
        self.roots: Roots = plan.draw(epoch, index)
        self.columns: RootColumns = plan.preparer.columns(self.roots)
        self._hops = walk_of(plan, self.roots, self.columns)
        self.asked: HopQueries = next(self._hops)
        """What the next hop asks, if `found` is None."""
        self.found: Hops | None = None
        self.take(None)

    def take(self, choice: ReuseChoice | None) -> None:
        """Take the next hop: of all rows that it asks about, or of those of a choice."""
        try:
            self.asked = self._hops.send(self._answer(choice))
        except StopIteration as end:
            self.found = end.value

    def _answer(self, choice: ReuseChoice | None) -> Neighbors | SomeNeighbors:
        asked = self.asked
        if choice is None:
            return self._sampled(asked)
        device = asked.nodes.device
        num_rows = None if self._plan.gpu is None else rounded(len(choice.at))
        at, limit = choice.at.to(device), asked.as_of
        position = limit if isinstance(limit, Tensor) else None
        targets = Frontier(asked.nodes, asked.t, position).some(at, num_rows)
        some = replace(
            asked,
            nodes=targets.nodes,
            t=targets.t,
            as_of=limit if targets.position is None else targets.position,
        )
        reused = choice.reused
        if num_rows is not None:
            reused = replace(
                reused,
                slot=reused.slot.to(device),
                stored=reused.stored.to(device),
                weight=F.pad(reused.weight, (0, num_rows - len(at))).to(device),
            )
        row = choice.row.to(device)
        return SomeNeighbors(at, num_rows, row, self._sampled(some), reused)

    def _sampled(self, asked: HopQueries) -> Neighbors:
        plan = self._plan
        return sample_neighbors(
            plan.graph, plan.sampler, asked.nodes, asked.t, asked.k,
            key=asked.key, as_of=asked.as_of, params=asked.params,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class BatchReuse:
    """What was decided of a batch, and how far it has come."""

    walk: Walk | None
    """None: its hops were taken already, or it takes nothing."""
    choices: list[ReuseChoice | None]
    """Of each hop below the first."""

    def taken(self) -> Walk | None:
        """Return the walk to whoever ends it, once."""
        walk, self.walk = self.walk, None
        return walk


class ReusingPlan:
    """The batches of a plan, which take rows from each other: a source for one pass of a loader.

    Its tasks are those of `tasks`: (epoch, index, `BatchReuse`). A batch is a function of its task,
    whoever prepares it, and however often.

    Args:
        plan: Of at least two hops, whose strategy draws nothing; without replay, memory or slices.
        hops: Decides, for each hop below the first; the last one may have super-batches, which are
            known as a whole when the one before begins.

    Raises:
        ValueError: If the plan's rows are not the same from batch to batch.
    """

    def __init__(self, plan: Plan, hops: Sequence[HopReuse]) -> None:
        check_reusable(plan)
        self._plan, self._hops = plan, tuple(hops)

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def graph(self) -> TemporalGraph:
        """The graph of the plan."""
        return self._plan.graph

    @property
    def gpu(self) -> Device | None:
        """Where batches are made: on a GPU, or in host memory."""
        return self._plan.gpu

    def tasks(
        self, tasks: Iterable[tuple[int, int]], num_threads: int
    ) -> Generator[tuple[int, int, BatchReuse]]:
        """Yield the tasks, in order, with what is decided of each; pulls them lazily.

        Args:
            tasks: Of the plan.
            num_threads: Threads for each hop; 0: all is done when a task is asked for.

        Raises:
            BatchError: If a batch cannot be drafted, in its place.
        """
        begun = self._by_threads(self._begun, tasks, num_threads)
        for number, hop in enumerate(self._hops):
            if number:
                begun = self._by_threads(partial(self._went_on, number), begun, num_threads)
            begun = _decided_ahead(hop, begun) if hop.super_batch else _decided(hop, begun)
        return begun

    def _by_threads(self, make: Any, items: Iterable[Any], num_threads: int) -> Generator[Any]:
        wrapped = partial(run_task, make)
        ahead = max(2, 2 * num_threads, *(hop.super_batch for hop in self._hops))
        return ordered_map(
            lambda task: (*task[:2], wrapped(task)),
            items,
            num_threads=num_threads,
            lookahead=ahead,
        )

    def _begun(self, epoch: int, index: int) -> BatchReuse:
        is_off = all(hop.is_off for hop in self._hops)
        return BatchReuse(None if is_off else Walk(self._plan, epoch, index), [])

    def _went_on(self, number: int, epoch: int, index: int, reuse: BatchReuse) -> BatchReuse:
        if reuse.walk is not None:
            reuse.walk.take(reuse.choices[number - 1])
        return reuse

    def pending(self, epoch: int, index: int, reuse: BatchReuse | None = None) -> PendingBatch:
        """Return a batch before its features are read, see `Plan.pending`; None takes no rows."""
        walk = None if reuse is None else reuse.taken()
        choices = [] if reuse is None else reuse.choices
        if walk is not None:  # its hops but the last one were taken
            choices = choices[-1:]
        elif any(choices):
            walk = Walk(self._plan, epoch, index)
        else:
            return self._plan.pending(epoch, index)
        for choice in choices:
            walk.take(choice)
        assert walk.found is not None
        return assemble_hops(self._plan, walk.roots, walk.columns, walk.found)

    def batch(self, epoch: int, index: int, reuse: BatchReuse | None = None) -> Batch:
        """Return a batch, see `Plan.batch`; None takes no rows."""
        return with_features(self._plan, self.pending(epoch, index, reuse))

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> DeviceBatches:
        """Return what makes the batches on a GPU: made there, or copied; never in slabs."""
        if self.gpu is not None:
            return OwnedBatches(self.batch)
        copying = CopyingPreparer(self._plan, gpu, clock)
        return OwnedBatches(lambda *task: copying.of_pending(self.pending(*task)))


def check_reusable(plan: Plan) -> None:
    """Raise ValueError unless rows of a plan's batches are the same in others."""
    strategy = plan.sampler.strategy
    if strategy != "recent":
        raise ValueError(
            f"reuse is for strategy recent: what {strategy} draws for a node depends on the rest "
            'of the batch; set strategy="recent", or leave reuse out (staleness=0)'
        )
    if len(plan.fanouts) < 2:
        raise ValueError(
            f"reuse is of rows below the top layer, and this model has {len(plan.fanouts)}: give "
            "it two layers or more, or leave reuse out (staleness=0)"
        )
    if plan.with_memory or plan.replay is not None or plan.slices > 1:
        raise ValueError(
            "reuse is for whole batches of new events, of a model without memory: leave out replay "
            "and slices (slices=1), or reuse (staleness=0)"
        )


_Decided = tuple[int, int, BatchReuse]


def _decided(hop: HopReuse, begun: Generator[_Decided]) -> Generator[_Decided]:
    """Let batches pass one by one."""
    with closing(begun):
        for task in begun:
            _decide(hop, task[-1])
            yield task


def _decided_ahead(hop: HopReuse, begun: Generator[_Decided]) -> Generator[_Decided]:
    """Let batches pass by super-batches; the first of each hands over hot rows of the next.

    What fails is raised when its turn has come.
    """
    failures: list[BaseException] = []
    with closing(begun):
        windows = _super_batches(hop, until_failure(begun, failures))
        window = next(windows, [])
        while window:
            for _, _, reuse in window:
                _decide(hop, reuse)
            following = next(windows, [])
            walks = [reuse.walk for _, _, reuse in following if reuse.walk is not None]
            hot = hop.ahead([(walk.roots, walk.asked) for walk in walks])
            choices = window[0][-1].choices
            first = choices.pop()
            choices.append(None if first is None else first.handing_over(hot))
            yield from window
            window = following
    for failure in failures:
        raise failure


def _super_batches(hop: HopReuse, begun: Iterator[_Decided]) -> Generator[list[_Decided]]:
    """Yield the batches of each super-batch; they are cut by the numbers of batches."""
    number, window = hop.progress.number, list[_Decided]()
    for task in begun:
        window.append(task)
        number += 1
        if number % hop.super_batch == 0:
            yield window
            window = []
    if window:
        yield window


def _decide(hop: HopReuse, reuse: BatchReuse) -> None:
    walk = reuse.walk
    reuse.choices.append(None if walk is None else hop.decide(walk.roots, walk.asked))
