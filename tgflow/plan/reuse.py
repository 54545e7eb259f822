"""Reuse of layer rows of earlier batches, computed with slightly older parameters.

Reuse of embeddings under bounded staleness as in NeutronOrch (PVLDB 17, 2024), for temporal graphs:
below the roots a layer's row of (node, time) depends on what happened before that time, which does
not change once the log has reached it. Only the parameters age, by one optimizer step per batch.

The rows to reuse are a function of the plan's own batches in their order, not of a cache's
contents: a run that is resumed, or prepared by other threads, reuses the same.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.cuda.device import Device
from tgflow.graph import Neighbors
from tgflow.graph.batch import Batch, ReusedRows, ReuseRecord
from tgflow.graph.sampling import Frontier
from tgflow.graph.sampling.hops import HopQueries, Hops, SomeNeighbors
from tgflow.plan._native import ReuseMap, padded_rows
from tgflow.plan.assemble import PendingBatch, assemble, walk_of
from tgflow.plan.device_preparer import CopiedBatches, MakeBatches, one_by_one
from tgflow.plan.draws import Roots
from tgflow.plan.in_order import ordered_map, run_task
from tgflow.plan.plan import Plan

WINDOW = 32
"""Batches between decisions whether reuse is worth its cost."""
LEAST_SHARE = 0.1
"""Least share of reused rows in the last `WINDOW` batches to continue."""


_NEW_WINDOW = {"window": 0, "window_asked": 0, "window_reused": 0}


class ReuseProgress(NamedTuple):
    """Counters of a hop's decisions so far."""

    number: int = 0
    """Number of the next batch."""
    asked: int = 0
    """Rows that batches requested while reuse was on."""
    reused: int = 0
    """Of these, rows that were reused and not computed."""
    refreshed: int = 0
    """Rows that could have been reused and were recomputed."""
    saved: int = 0
    """Neighbors neither sampled nor read because their target was reused."""
    largest_lag: int = 0
    """Largest number of batches since a reused row was computed; at most the staleness bound."""
    dropped: int = 0
    """Rows discarded because the past had changed."""
    since: int = 0
    """Rows of batches before this one are not reused."""
    late: int = 0
    """Late events that the latest batch could see."""
    window: int = 0
    """Batches since the last decision whether reuse is worth its cost."""
    window_asked: int = 0
    """Rows that those batches requested."""
    window_reused: int = 0
    """Of these, rows that were reused."""
    is_off: int = 0
    """1 or True: too little was reused, and reuse is off for the rest of this pass."""

    def restarted(self) -> ReuseProgress:
        """Return the progress at the start of another pass, which shares no rows."""
        return self._replace(since=self.number, is_off=False, **_NEW_WINDOW)

    def counted(self, asked: int, reused: int, refreshed: int, k: int, lag: int) -> ReuseProgress:
        """Return the progress after a batch whose rows have `k` neighbors each."""
        now = self._replace(
            number=self.number + 1,
            asked=self.asked + asked,
            reused=self.reused + reused,
            refreshed=self.refreshed + refreshed,
            saved=self.saved + reused * k,
            largest_lag=max(self.largest_lag, lag),
            window=self.window + 1,
            window_asked=self.window_asked + asked,
            window_reused=self.window_reused + reused,
        )
        if now.window < WINDOW:
            return now
        is_off = now.window_reused < LEAST_SHARE * now.window_asked
        return now._replace(is_off=is_off, **_NEW_WINDOW)

    def oldest(self, staleness: int) -> int:
        """Return the first batch whose rows the next one may reuse."""
        return max(self.since, self.number - staleness)


@dataclass(frozen=True, slots=True, eq=False)
class ReuseChoice:
    """Rows of a hop that a batch computes, and those it reuses."""

    at: Tensor
    """int64 `[n]`: frontier rows to compute."""
    row: Tensor
    """int64 `[N]`: new place of each frontier row: among those of `at`, or behind."""
    reused: ReusedRows


class HopReuse:
    """Decides, batch by batch, which rows of a hop below the first to reuse.

    Rows computed at most `staleness` batches before, at least 1, may be reused. Of them the share
    `refresh`, above 0, is recomputed, with gradients scaled up for all of them.
    """

    def __init__(
        self,
        plan: Plan,
        hop: int,
        staleness: int,
        refresh: float,
        capacity: int,
        pads: bool,
        progress: ReuseProgress,
        rows: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> None:
        self._plan, self._hop, self._staleness, self._refresh = plan, hop, staleness, refresh
        self._capacity, self._pads = capacity, pads
        self._map = ReuseMap(capacity)
        self._map.restore(*rows)
        self._change = plan.graph.last_change
        self.progress = progress

    def decide(self, roots: Roots, asked: HopQueries) -> ReuseChoice | None:
        """Return what the next batch reuses; None: nothing, all rows are computed.

        Waits for a GPU that the queries are on.
        """
        if self.progress.is_off:
            return None
        nodes, t = asked.nodes.cpu(), asked.t.cpu()
        if self._plan.gpu is not None:  # drop padding
            size = int((nodes >= 0).sum())
            nodes, t = nodes[:size], t[:size]
        num_used = len(nodes)
        limit = roots.host.end if self._plan.draws.sees_all_before else roots.host.begin
        self._forget_changed(limit)
        key = derive_key(roots.key, KeyDomain.REUSE, self._hop)
        order, slot = torch.empty(2, num_used, dtype=torch.int64).unbind(0)
        number = self.progress.number
        may_recur = torch.zeros(num_used, dtype=torch.bool)
        if limit > 0:  # no event is appended before a time that the log has reached
            torch.le(t, self._plan.graph.log.gather(torch.tensor([limit - 1])).t, out=may_recur)
        counts = self._map.decide(
            number, nodes, t, may_recur, self._staleness, self._refresh, key,
            self._plan.graph.seconds_per_tick, order, slot,
        )  # fmt: skip
        refreshed, stored, computed, lag = counts
        assert lag <= self._staleness
        reused = num_used - computed
        self.progress = self.progress.counted(num_used, reused, refreshed, asked.k, lag)
        made = order[:stored]
        record = ReuseRecord(number, nodes[made], t[made], slot[:stored], self.progress)
        row = torch.empty_like(order)
        row[order] = torch.arange(len(order))
        weight = torch.ones(computed)
        weight[:refreshed] = 1 / self._refresh
        taken, kept = slot[computed:], slot[:stored]
        if self._pads:
            row[order[computed:]] += padded_rows(computed) - computed
            taken, kept = _padded(taken, 0), _padded(kept, self._capacity)
        return ReuseChoice(order[:computed], row, ReusedRows(taken, kept, weight, record))

    def _forget_changed(self, limit: int) -> None:
        """Discard all rows if the past that the next batch sees has changed."""
        graph, progress = self._plan.graph, self.progress
        change = graph.last_change
        late = 0
        if change is not None:
            late = sum(
                min(max(limit - each.position, 0), each.arguments["size"])
                for each in graph.mutations
                if each.kind == "append_late"
            )
        if change is self._change and late == progress.late:
            return
        dropped = progress.dropped + len(self._map)
        self.progress = progress._replace(since=progress.number, late=late, dropped=dropped)
        self._change = change
        self._map.clear()


def _padded(slots: Tensor, fill: int) -> Tensor:
    """Return padded slots; an empty tensor stays empty."""
    size = padded_rows(len(slots)) if len(slots) else 0
    return torch.cat([slots, slots.new_full((size - len(slots),), fill)])


class Walk:
    """The hops of one batch, taken one by one."""

    def __init__(self, plan: Plan, epoch: int, index: int) -> None:
        self._plan = plan
        self.roots = plan.placed(plan.draws.roots(epoch, index))
        self._hops = walk_of(plan.draws, self.roots)
        self.asked: HopQueries = next(self._hops)
        """Queries of the next hop, if `found` is None."""
        self.found: Hops | None = None
        self.take(None)

    def take(self, choice: ReuseChoice | None) -> None:
        """Expand the next hop: all queried rows, or those of a choice."""
        try:
            self.asked = self._hops.send(self._answer(choice))
        except StopIteration as end:
            self.found = end.value

    def _answer(self, choice: ReuseChoice | None) -> Neighbors | SomeNeighbors:
        asked = self.asked
        if choice is None:
            return asked.sampled(self._plan.graph, self._plan.draws.sampler)
        device = asked.nodes.device
        num_rows = None if self._plan.gpu is None else padded_rows(len(choice.at))
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
        found = some.sampled(self._plan.graph, self._plan.draws.sampler)
        return SomeNeighbors(at, num_rows, choice.row.to(device), found, reused)


@dataclass(slots=True, eq=False)
class BatchReuse:
    """Reuse decisions of a batch, and its progress."""

    walk: Walk | None
    """None: its hops were expanded already, or it reuses nothing."""
    choices: list[ReuseChoice | None]
    """Choice for each hop below the first."""


_Task = tuple[int, int, BatchReuse]


class ReusingPlan:
    """Batches of a plan that reuse each other's rows: a source for one pass of a loader.

    Its tasks are those of `tasks`: (epoch, index, `BatchReuse`). A batch is a pure function of
    its task.
    """

    def __init__(self, plan: Plan, hops: Sequence[HopReuse]) -> None:
        check_reusable(plan)
        self._plan, self._hops = plan, tuple(hops)
        self.graph, self.gpu = plan.graph, plan.gpu

    def __len__(self) -> int:
        return len(self._plan)

    def tasks(
        self, tasks: Iterable[tuple[int, int]], num_threads: int
    ) -> Generator[tuple[int, int, BatchReuse]]:
        """Yield the tasks, in order, with the decisions for each; pulls them lazily."""
        how: Any = {"num_threads": num_threads, "lookahead": max(2, 2 * num_threads)}
        decided = ordered_map(self._begun, tasks, **how)
        for number, hop in enumerate(self._hops):
            if number:
                decided = ordered_map(_next_hop, decided, **how)
            decided = _decided(hop, decided)
        return decided

    def _begun(self, task: tuple[int, int]) -> _Task:
        is_off = all(hop.progress.is_off for hop in self._hops)
        walk = None if is_off else run_task(partial(Walk, self._plan), task)
        return *task, BatchReuse(walk, [])

    def pending(self, epoch: int, index: int, reuse: BatchReuse | None = None) -> PendingBatch:
        """Return a batch before its features are read, see `Plan.pending`; None reuses no rows."""
        walk, choices = None, []
        if reuse is not None:
            walk, reuse.walk, choices = reuse.walk, None, reuse.choices
        if walk is not None:  # all its hops but the last were expanded
            choices = choices[-1:]
        elif any(choices):
            walk = Walk(self._plan, epoch, index)
        else:
            return self._plan.pending(epoch, index)
        for choice in choices:
            walk.take(choice)
        assert walk.found is not None
        return assemble(self._plan.draws, walk.roots, walk.found)

    def batch(self, epoch: int, index: int, reuse: BatchReuse | None = None) -> Batch:
        """Return a batch, see `Plan.batch`; None reuses no rows."""
        return self.pending(epoch, index, reuse).gathered(self.graph)

    def batches_on(self, gpu: Device, num_slots: int) -> MakeBatches:
        """Return a function that makes batches on a GPU: made there or copied, never in slots."""
        if self.gpu is not None:
            return one_by_one(self.batch)
        copies = CopiedBatches(self._plan.draws, gpu, self.pending)
        return one_by_one(lambda *task: copies.of_pending(self.pending(*task)))


def check_reusable(plan: Plan) -> None:
    """Raise ValueError unless rows of one batch can be reused in others."""
    draws, strategy = plan.draws, plan.draws.sampler.strategy
    if strategy != "recent":
        raise ValueError(
            f"reuse is for strategy recent: what {strategy} draws for a node depends on the rest "
            'of the batch; set strategy="recent", or leave reuse out (staleness=0)'
        )
    if len(draws.fanouts) < 2:
        raise ValueError(
            f"reuse is of rows below the top layer, and this model has {len(draws.fanouts)}: give "
            "it two layers or more, or leave reuse out (staleness=0)"
        )
    if draws.with_memory or draws.replay is not None or draws.slices > 1:
        raise ValueError(
            "reuse is for whole batches of new events, of a model without memory: leave out replay "
            "and slices (slices=1), or reuse (staleness=0)"
        )


def _next_hop(task: _Task) -> _Task:
    walk, choices = task[-1].walk, task[-1].choices
    if walk is not None:
        run_task(lambda *_: walk.take(choices[-1]), task)
    return task


def _decided(hop: HopReuse, begun: Generator[_Task]) -> Generator[_Task]:
    """Decide for each batch in order."""
    with closing(begun):
        for task in begun:
            walk = task[-1].walk
            task[-1].choices.append(None if walk is None else hop.decide(walk.roots, walk.asked))
            yield task
