"""Alerts: the events of high label probability, at most a number of them a day."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.base.units import INT64_MIN, ticks_in
from tgflow.checkpoint import Checkpoint, Component, UntrustedCheckpoint
from tgflow.checkpoint.tensors import check_finite
from tgflow.checkpoint.typed import read_as
from tgflow.graph.batch import HostEvents

DAYS = 7
"""Most earlier days that a threshold depends on."""
KEPT = 10_000
"""Latest alerts that are kept; all of them are in the scores."""
SECTION = "alerts"
Floats: TypeAlias = NDArray[np.float64]
Position: TypeAlias = Callable[[], int]
Classes: TypeAlias = Callable[[Tensor], Tensor]


class AlertList(NamedTuple):
    """The latest alerts of a run, at most `KEPT`, in order."""

    position: Tensor = torch.empty(0, dtype=torch.int64)
    """Log positions of the events, ascending, int64 `[N]`."""
    probability: Tensor = torch.empty(0, dtype=torch.float64)
    """Their probabilities of the positive label when they were predicted, float64 `[N]`."""

    def extended(self, position: Tensor, probability: Tensor) -> AlertList:
        """Return the list with later alerts."""
        columns = (self.position, position), (self.probability, probability)
        return AlertList(*(torch.cat(each)[-KEPT:] for each in columns))

    def between(self, begin: int, end: int) -> AlertList:
        """Return the alerts at log positions `[begin, end)`."""
        rows = slice(*torch.searchsorted(self.position, torch.tensor([begin, end])).tolist())
        return AlertList(self.position[rows], self.probability[rows])

    @classmethod
    def load(cls, reader: Checkpoint) -> AlertList:
        """Return the alerts in a checkpoint, whose section is checked; none if it has none."""
        if (found := reader.sections.get(SECTION)) is None:
            return cls()
        check_finite(SECTION, found)
        columns = [found.get(name, torch.empty(0, 0)) for name in (*cls._fields, "highest")]
        position, probability, _ = columns
        first, stop = torch.tensor([[-1], [reader.meta["position"]]])
        if (
            [(x.dtype, x.dim()) for x in columns] != [(torch.int64, 1), *[(torch.float64, 1)] * 2]
            or not len(position) == len(probability) <= KEPT
            or (torch.cat([first, position, stop]).diff() <= 0).any()
        ):
            raise UntrustedCheckpoint(f"{SECTION} are no alerts at increasing positions")
        return cls(position, probability)


@dataclass(frozen=True, slots=True)
class _Days:
    """The day of the latest events, and the levels of earlier ones."""

    day: int = INT64_MIN
    num_events: int = 0
    num_alerts: int = 0
    total: int = 0
    """Alerts of all days."""
    num_days: int = 0
    """Days with events."""
    levels: tuple[float, ...] = ()


class _State(NamedTuple):
    days: _Days = _Days()
    highest: Floats = np.empty(0)
    """Highest scores of the day, one more than the budget, in any order."""
    alerts: AlertList = AlertList()


class AlertBudget(Component):
    """Chooses alerts among scores in the order of the log, at most `budget` a day.

    A day is one of UTC, by the times of the events. An event is an alert if its score is above the
    threshold of its day, and the day has had fewer than `budget` alerts before it. The threshold is
    the mean level of the latest days before with events, at most `DAYS`. The level of a day is the
    score above which it had `budget` events: its (budget + 1)-th highest, 0 if it had no more
    events. So the alerts of a day are known at once, depend on no later event, and their number
    stays within the budget where all scores rise. The first day has no threshold, and no alerts.

    A score that is not finite is no alert. A late event counts for the day that has begun.

    Args:
        budget: Most alerts a day.
        unit: Unit of a tick of the events' times.
        position: Returns the number of learned events.
        classes: Returns the classes of events by position, -1 where not known, for the report.
    """

    def __init__(
        self, budget: int, unit: str, position: Position, classes: Classes = torch.zeros_like
    ) -> None:
        self._budget, self._position, self._classes = budget, position, classes
        self._ticks, self._state = int(ticks_in("1d", unit)), _State()
        self._before: tuple[int, _State] | None = None
        """Position of the latest micro-batch, and the state before it."""

    @property
    def alerts(self) -> AlertList:
        """The latest alerts; those of events that are not learned yet may be among them."""
        return self._state.alerts

    def add(self, events: HostEvents, probability: Tensor) -> Tensor:
        """Return which events of a micro-batch are alerts, bool `[B]`, and keep these."""
        self._before = events.begin, self._state
        chosen = self.chosen(events.t, probability)
        alerts = self.alerts.extended(events.eid[chosen], probability[chosen].double())
        self._state = self._state._replace(alerts=alerts)
        return chosen

    def chosen(self, t: Tensor, score: Tensor) -> Tensor:
        """Return which of the next events, at ticks `t`, are alerts, bool `[B]`."""
        days, scores = t.numpy() // self._ticks, score.double().numpy()
        ends = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        parts = [self._of_day(int(days[a]), scores[a:b]) for a, b in pairwise(ends) if a < b]
        return torch.from_numpy(np.concatenate([np.empty(0, bool), *parts]))

    def _of_day(self, day: int, scores: Floats) -> NDArray[np.bool_]:
        (now, highest, alerts), most = self._state, self._budget + 1
        day = max(day, now.day)
        if day > now.day:
            levels = now.levels
            if now.num_days:
                has_more = now.num_events > self._budget
                levels = (*levels, float(np.sort(highest)[-most:][0]) if has_more else 0.0)
            now = _Days(day, 0, 0, now.total, now.num_days + 1, levels[-DAYS:])
            highest = np.empty(0)
        threshold = sum(now.levels) / len(now.levels) if now.levels else math.inf
        is_finite = np.isfinite(scores)
        is_over = is_finite & (scores > threshold)
        chosen = is_over & (now.num_alerts + np.cumsum(is_over) <= self._budget)
        highest = np.concatenate([highest, scores[is_finite]])
        if len(highest) > most:
            highest = np.partition(highest, -most)[-most:]
        num, num_events = int(chosen.sum()), now.num_events + int(is_finite.sum())
        sums = num_events, now.num_alerts + num, now.total + num
        self._state = _State(_Days(day, *sums, now.num_days, now.levels), highest, alerts)
        return chosen

    def _learned(self) -> _State:
        """Return the state after the learned micro-batches."""
        if self._before is not None and self._position() <= self._before[0]:
            return self._before[1]
        return self._state

    def report(self) -> Mapping[str, Mapping[str, int]]:
        """Return the numbers of alerts and of days, and of the kept ones those of known labels."""
        days, _, alerts = self._learned()
        classes = self._classes(alerts.position)
        known, positive = int((classes >= 0).sum()), int((classes == 1).sum())
        found = {"budget": self._budget, "num_alerts": days.total, "num_days": days.num_days}
        return {SECTION: found | {"num_known": known, "num_positive": positive}}

    def save(self, writer: Checkpoint) -> None:
        days, highest, alerts = self._learned()
        writer.note(SECTION, asdict(days))
        highest = np.sort(highest)  # of the same bits however events came in micro-batches
        writer.put(SECTION, {"highest": torch.from_numpy(highest), **alerts._asdict()})

    def load(self, reader: Checkpoint) -> None:
        """Restore the saved state, if any; earlier levels may be those of another budget."""
        if SECTION in reader.sections:
            alerts = AlertList.load(reader)
            days: _Days = read_as(_Days, reader.meta.get(SECTION), SECTION)
            self._state = _State(days, reader.get(SECTION)["highest"].numpy().copy(), alerts)
