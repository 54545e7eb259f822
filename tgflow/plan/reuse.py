"""Which rows of a layer a batch takes from earlier ones, computed with parameters a little older.

The reuse of embeddings under bounded staleness of NeutronOrch (PVLDB 17, 2024), for temporal
graphs: below the roots a layer's row of (node, time) is made of what happened before that time,
which does not change once the log has reached it (`tgflow.sampling.settled`). What ages is the
parameters alone, by a step a batch.

Which rows are taken is a function of the plan's own batches in their order, not of what a cache
happens to hold: so a run that is resumed, or prepared by other threads, takes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import HotRows, ReusedRows, ReuseRecord
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan._native import ReuseMap
from tgflow.plan.hot_rows import AskedRows, recurring_rows
from tgflow.plan.padding import rounded
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampling.hops import HopQueries
from tgflow.sampling.settled import find_settled

WINDOW = 32
"""Batches after which it is decided whether reuse is worth its while."""
LEAST_SHARE = 0.1
"""Of the rows of the last `WINDOW` batches that must have been reused for it to go on."""


@dataclass(frozen=True, slots=True)
class ReuseRule:
    """Which rows are taken."""

    staleness: int
    """Those that were computed at most this many batches before, at least 1."""
    refresh: float
    """Share of them, above 0, that is computed again, with gradients that stand for all of them."""
    super_batch: int = 0
    """Batches of a super-batch, whose hot rows are computed before it begins, at most half of
    `staleness` rounded up; 0: each row is computed by the first batch that asks for it."""


class ReuseProgress(NamedTuple):
    """How far the decisions about a hop have come, and what they were so far."""

    number: int = 0
    """Of the next batch."""
    asked: int = 0
    """Rows that batches asked for, while rows were reused at all."""
    reused: int = 0
    """Of these, rows that were taken and not computed."""
    refreshed: int = 0
    """Rows that could have been taken, and were computed again."""
    saved: int = 0
    """Neighbors that were neither sampled nor read as others were taken."""
    largest_lag: int = 0
    """Batches since the oldest row that was taken had been computed; at most the staleness."""
    dropped: int = 0
    """Rows that were forgotten as the past had changed."""
    since: int = 0
    """Rows of batches before this one are not taken."""
    late: int = 0
    """Late events that the latest batch could see."""
    window: int = 0
    """Batches since it was last decided whether reuse is worth its while."""
    window_asked: int = 0
    """Rows that they asked for."""
    window_reused: int = 0
    """Of these, rows that were taken."""
    is_off: int = 0
    """1: too little was reused, and nothing is any more in this pass."""
    begun: int = 0
    """The first batch of the pass."""

    def restarted(self) -> ReuseProgress:
        """Return the progress at the start of another pass, with which no rows are shared."""
        begun = self._replace(since=self.number, begun=self.number, is_off=0)
        return begun._with_new_window()

    def _with_new_window(self) -> ReuseProgress:
        return self._replace(window=0, window_asked=0, window_reused=0)

    def counted(self, asked: int, reused: int, refreshed: int, k: int, lag: int) -> ReuseProgress:
        """Return the progress after a batch, whose rows have `k` neighbors each."""
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
        return now._replace(is_off=int(is_off))._with_new_window()

    def oldest(self, staleness: int) -> int:
        """Return the first batch whose rows the next one may take."""
        return max(self.since, self.number - staleness)


@dataclass(frozen=True, slots=True, eq=False)
class ReuseChoice:
    """What a batch computes of the rows that a hop asks for, and what it takes."""

    at: Tensor
    """int64 `[n]`: the rows to compute, as numbers of the hop's frontier."""
    row: Tensor
    """int64 `[N]`: where each row of the frontier is then: at the places of `at`, or behind."""
    reused: ReusedRows

    def handing_over(self, hot: HotRows | None) -> ReuseChoice:
        """Return the choice of a batch with which rows are handed over that others will take."""
        record = replace(self.reused.record, hot=hot)
        return replace(self, reused=replace(self.reused, record=record))


class HopReuse:
    """Decides for the rows that a hop below the first asks for, batch after batch.

    Args:
        spec: The plan.
        hop: Which hop, at least 1.
        rule: Which rows are taken.
        capacity: Rows that the ring holds.
        pads: Whether batches go to a GPU, in the sizes of `tgflow.plan.padding`.
        progress: From where to go on.
        rows: What the ring holds that may be taken: the batch, node, time and slot of each, int64
            `[S]`, in ascending order of batches.
    """

    def __init__(
        self,
        spec: PlanSpec,
        hop: int,
        rule: ReuseRule,
        capacity: int,
        pads: bool,
        progress: ReuseProgress,
        rows: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> None:
        self._spec, self._hop, self._rule = spec, hop, rule
        self._capacity, self._pads = capacity, pads
        self._map = ReuseMap(capacity)
        self._map.restore(*rows)
        self._change = spec.graph.last_change
        self.progress = progress

    @property
    def is_off(self) -> bool:
        """Whether nothing is reused any more."""
        return bool(self.progress.is_off)

    @property
    def super_batch(self) -> int:
        """Batches of a super-batch; 0: there are none."""
        return self._rule.super_batch

    def decide(self, roots: Roots, asked: HopQueries) -> ReuseChoice | None:
        """Return what the next batch takes; None: nothing, all is computed as without reuse.

        Waits for a GPU that the queries are on.

        Args:
            roots: Of the batch.
            asked: The rows: queries about what they are made of, as long as all are computed.
        """
        if self.is_off:
            return None
        nodes, t = asked.nodes, asked.t
        if self._spec.gpu is not None:
            nodes, t = _used_of(asked)
        num_used = len(nodes)
        limit = self._limit(roots)
        self._forget_changed(limit)
        key = derive_key(roots.key, KeyDomain.REUSE, self._hop)
        order, slot = torch.empty(2, num_used, dtype=torch.int64).unbind(0)
        rule, number = self._rule, self.progress.number
        may_recur = find_settled(self._spec.graph.log, t, limit)
        counts = self._map.decide(
            number, nodes, t, may_recur, rule.staleness, rule.refresh, key, order, slot
        )
        refreshed, stored, computed, lag = counts
        assert lag <= rule.staleness
        reused = num_used - computed
        self.progress = self.progress.counted(num_used, reused, refreshed, asked.k, lag)
        made = order[:stored]
        record = ReuseRecord(number, nodes[made], t[made], slot[:stored], self.progress)
        return self._choice(order, slot, (refreshed, stored, computed), record)

    def ahead(self, asked: Sequence[tuple[Roots, HopQueries]]) -> HotRows | None:
        """Return which rows of the next super-batch are computed before it; they get slots.

        Those that two or more of its batches ask for, unless the ring has them; where it is short
        of room, those that most ask for. They count as rows of the batch at which the super-batch
        before began, whose parameters they are of. None: there are none, or the past has changed
        since that batch.

        Args:
            asked: As `decide`, of the batches of the next super-batch, once it is decided about all
                those before; in host memory.
        """
        progress, rule = self.progress, self._rule
        number = max(progress.number - rule.super_batch, progress.begun)
        if self.is_off or not asked or number < progress.since:
            return None
        rows = recurring_rows([self._settled(*each) for each in asked])
        slot = torch.empty_like(rows.nodes)
        oldest = progress.oldest(rule.staleness)
        self._map.insert(number, oldest, rows.nodes, rows.t, slot)
        kept = (slot >= 0).nonzero().flatten()
        if not len(kept):
            return None
        nodes, t, position, slots = (column[kept] for column in (*rows, slot))
        k = asked[0][1].k
        return HotRows(number, progress.number, nodes, t, position, slots, k)

    def _limit(self, roots: Roots) -> int:
        """Return the log position that no query of a batch sees events beyond."""
        return roots.host.end if self._spec.sees_all_before else roots.host.begin

    def _settled(self, roots: Roots, asked: HopQueries) -> AskedRows:
        """Return those rows of a batch that are the same in later ones."""
        may_recur = find_settled(self._spec.graph.log, asked.t, self._limit(roots))
        position = asked.as_of
        if not isinstance(position, Tensor):
            assert position is not None
            position = torch.full_like(asked.t, position)
        return AskedRows(asked.nodes[may_recur], asked.t[may_recur], position[may_recur])

    def _choice(
        self, order: Tensor, slot: Tensor, counts: tuple[int, int, int], record: ReuseRecord
    ) -> ReuseChoice:
        refreshed, stored, computed = counts
        row = torch.empty_like(order)
        row[order] = torch.arange(len(order))
        weight = torch.ones(computed)
        weight[:refreshed] = 1 / self._rule.refresh
        taken, kept = slot[computed:], slot[:stored]
        if self._pads:
            row[order[computed:]] += rounded(computed) - computed
            taken, kept = _padded(taken, 0), _padded(kept, self._capacity)
        return ReuseChoice(order[:computed], row, ReusedRows(taken, kept, weight, record))

    def _forget_changed(self, limit: int) -> None:
        """Forget all rows if the past that the next batch sees is not that of those before."""
        graph, progress = self._spec.graph, self.progress
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


def _used_of(asked: HopQueries) -> tuple[Tensor, Tensor]:
    """Return nodes and times of a GPU's queries on the host, without padding."""
    nodes = asked.nodes.cpu()
    size = int((nodes >= 0).sum())
    return nodes[:size], asked.t.cpu()[:size]


def _padded(slots: Tensor, fill: int) -> Tensor:
    """Return slots up to a size; none stay none."""
    size = rounded(len(slots)) if len(slots) else 0
    return torch.cat([slots, slots.new_full((size - len(slots),), fill)])
