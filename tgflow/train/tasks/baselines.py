"""Heuristic baselines of labels: rules over the labels visible to an event."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.graph import EventLog
from tgflow.train.tasks.targets import LabelHistory

BASELINES = ("majority", "source_last", "source_most", "source_average", "pair_last")
"""The most frequent label; the source's last, its most frequent, and the moving average of its
labels; the last of the pair. Fallback, also for ties: the source's most frequent label, or else the
most frequent one."""
WINDOW = 7
"""Window of the moving average m <- ((w - 1) m + y) / w, as in TGB."""
_OF_SOURCE, _OF_ALL = 1e-3, 1e-6
"""Weights that break ties, and predict for sources without labels."""
_AT_ONCE = 1000


class LabelRules:
    """Follows a log in order, and predicts the label of each event by each heuristic baseline."""

    def __init__(self, log: EventLog, history: LabelHistory) -> None:
        self._log, self._history = log, history
        self._num_seen = 0
        self._late: dict[int, int] = {}
        """The class of each event with a late label, of those seen."""
        self._num_late = 0
        self._all = np.zeros(history.num_classes)
        self._most: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._averages: dict[int, dict[int, float]] = {}
        self._src_last: dict[int, int] = {}
        self._pair_last: dict[Hashable, int] = {}

    def predicted(self, start: int, stop: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield positions, and the score of each class by each rule, float64 `[B, num_classes]`."""
        for first in range(start, stop, _AT_ONCE):
            eid = torch.arange(first, min(first + _AT_ONCE, stop))
            self._history.upto(int(eid[-1]) + 1)
            yield eid, self._classes_of(eid)

    def _classes_of(self, eid: Tensor) -> dict[str, Tensor]:
        shape = (len(eid), self._history.num_classes)
        found = {name: np.zeros(shape) for name in BASELINES}
        events = self._log.gather(eid)
        rows = zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)
        num_late = self._log.late.num_known(eid)
        for row, (src, dst, t) in enumerate(rows):
            self._see(self._history.cut(t))
            self._see_late(int(num_late[row]))
            shares = self._all / max(self._all.sum(), 1)
            said: dict[str, Mapping[int, float]] = {
                "majority": {},
                "source_last": _only(self._src_last.get(src)),
                "source_most": self._most.get(src, {}),
                "source_average": self._averages.get(src, {}),
                "pair_last": _only(self._pair_last.get((src, dst))),
            }
            for name, weights in said.items():
                found[name][row] = _OF_ALL * shares
                _add_shares(found[name][row], weights, 1.0)
                if name == "pair_last":
                    _add_shares(found[name][row], self._most.get(src, {}), _OF_SOURCE)
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def _see(self, cut: int) -> None:
        """Add the own labels of the events before a position."""
        if cut <= self._num_seen:
            return
        eid = torch.arange(self._num_seen, cut)
        events, classes = self._log.gather(eid), self._history.classes(eid).tolist()
        rows = zip(eid.tolist(), events.src.tolist(), events.dst.tolist(), classes, strict=True)
        for each, src, dst, own in rows:
            if own >= 0 and each not in self._late:
                self._add(src, dst, own)
        self._num_seen = cut

    def _see_late(self, stop: int) -> None:
        """Add late labels by their order; one that corrects another label takes its count."""
        if stop <= self._num_late:
            return
        places = torch.arange(self._num_late, stop)
        eid, code = self._history.late(places), self._history.late_classes(places)
        events, owns = self._log.gather(eid), self._history.classes(eid).tolist()
        rows = zip(
            eid.tolist(), events.src.tolist(), events.dst.tolist(), owns, code.tolist(), strict=True
        )
        for each, src, dst, own, late in rows:
            before = self._late.get(each, own if each < self._num_seen else -1)
            if before >= 0:
                self._all[before] -= 1
                self._most[src][before] -= 1
            if late >= 0:
                self._add(src, dst, late)
            self._late[each] = late
        self._num_late = stop

    def _add(self, src: int, dst: int, own: int) -> None:
        self._all[own] += 1
        self._most[src][own] += 1
        self._src_last[src] = self._pair_last[src, dst] = own
        average = self._averages.get(src)
        if average is None:
            self._averages[src] = {own: 1.0}
            return
        for each in average:
            average[each] *= (WINDOW - 1) / WINDOW
        average[own] = average.get(own, 0.0) + 1 / WINDOW


def _only(own: int | None) -> Mapping[int, float]:
    return {} if own is None else {own: 1.0}


def _add_shares(row: NDArray[np.float64], weights: Mapping[int, float], factor: float) -> None:
    total = max(sum(weights.values()), _OF_ALL)  # 0 if all were withdrawn
    for each, weight in weights.items():
        row[each] += factor * weight / total
