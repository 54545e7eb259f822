"""Labels of events as classes, and the time from which each is visible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.graph import TemporalGraph
from tgflow.graph.events import NO_LABEL
from tgflow.nn.memory_table import grow_to
from tgflow.plan.count_lookup import LastEvents

DEPTH = 8
"""Earlier labels of each list that are visible to an event."""
_DEEPEST = 64 * DEPTH
"""Earlier events of each list among which known labels are looked for."""
_MINUS = -2
"""Stands for the label -1 among classes, of which -1 is no label."""


class LabelHistory:
    """The labels of a log as classes, and the earlier ones visible to each event.

    At time t only labels of events before `t - delay` are visible, also those of the same batch.
    They are a function of the log before t, so no state is saved: the log is read as far as needed.
    Takes some 40 bytes an event, plus the same for each new pair. Not thread-safe.

    With two classes, labels are 0 and 1, or -1 and 1, and 1 is class 1. With more, the classes are
    numbered by first occurrence of their label. `NO_LABEL` is of class -1: it is not shown.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        num_classes: int,
        delay: int = 0,
        codes: dict[int, int] | None = None,
    ) -> None:
        self.num_classes, self.delay = num_classes, delay
        self._log, self._last = graph.log, LastEvents(graph)
        self._classes = torch.zeros(0, dtype=torch.int32)
        self._has_unknown = False
        self._size = 0
        """Number of events read, which have classes; the rest is spare capacity."""
        self.codes: dict[int, int] = {} if codes is None else codes
        """The class of each label, of more than two classes; in the order of the classes."""
        self._first: dict[int, int] = {}

    def upto(self, stop: int) -> None:
        if stop <= self._size:
            return
        label = self._log.read(self._size, stop).label
        if label is None:
            raise ValueError("the events have no labels; name their column by target=...")
        self._classes = grow_to(self._classes, stop)
        added = self._classes[self._size : stop]
        known = label != NO_LABEL
        self._has_unknown |= not known.all()
        added[:] = -1
        added[known] = self._classes_of(label[known]).int()
        if self.num_classes == 2 and len(minus := (label == -1).nonzero()):
            self._first.setdefault(_MINUS, self._size + int(minus[0]))
        codes, places = np.unique(added.numpy(), return_index=True)
        for code, place in zip(codes.tolist(), places.tolist(), strict=True):
            self._first.setdefault(code, self._size + place)
        self._size = stop

    def _classes_of(self, label: Tensor) -> Tensor:
        if self.num_classes == 2:
            if (wrong := (label < -1) | (label > 1)).any():
                raise ValueError(
                    f"label {int(label[wrong][0])} is none of 0 and 1, or -1 and 1, so which class "
                    "it is of is not known; pass positive_label=..., or classes=..."
                )
            return label > 0
        kinds, first, which = np.unique(label.numpy(), return_index=True, return_inverse=True)
        for kind in kinds[first.argsort()].tolist():
            if self.codes.setdefault(kind, len(self.codes)) >= self.num_classes:
                raise ValueError(
                    f"label {kind} would be class {self.num_classes + 1} of {self.num_classes}; "
                    "raise the number of classes: classes=..."
                )
        codes = torch.tensor([self.codes[kind] for kind in kinds.tolist()])
        return codes[torch.from_numpy(which)]

    def classes(self, eid: Tensor) -> Tensor:
        """Return the classes of events, int64 `[N]` of positions `[N]`; -1: not known."""
        if not len(eid):
            return eid
        self.upto(int(eid.max()) + 1)
        return self._classes[eid].long()

    def labels(self, codes: Tensor, t: Tensor) -> Tensor:
        """Return the labels of classes, as seen at times; of two, 0 is -1 once that was seen."""
        if self.num_classes == 2:
            first = self._first.get(_MINUS, INT64_MAX)
            is_minus = [first < self.cut(time) for time in t.tolist()]
            return torch.where((codes == 0) & torch.tensor(is_minus, dtype=torch.bool), -1, codes)
        known = [*self.codes]
        return torch.tensor(
            [
                known[code] if self._first.get(code, INT64_MAX) < self.cut(time) else NO_LABEL
                for code, time in zip(codes.tolist(), t.tolist(), strict=True)
            ],
            dtype=torch.int64,
        )

    def first_of(self, labels: Sequence[int], t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes of labels, int64 `[L]`, and which labels were seen at times.

        The latter is bool `[B, L]` of ticks `[B]`; the class of one that was never seen is 0.
        """
        codes = [self.codes.get(label, -1) for label in labels]
        first = [INT64_MAX if code < 0 else self._first.get(code, INT64_MAX) for code in codes]
        cuts = torch.tensor([self.cut(time) for time in t.tolist()], dtype=torch.int64)
        return torch.tensor(codes).clamp(min=0), torch.tensor(first) < cuts.unsqueeze(1)

    def cut(self, t: int) -> int:
        """Return the log position up to which events are visible at a time."""
        return self._log.position(max(t - self.delay, INT64_MIN))

    def past(self, eid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes visible to events, and the ticks since the newest of each list."""
        if not len(eid):
            return eid.new_empty(0, 4, DEPTH), eid.new_empty(0, 4)
        self.upto(int(eid.max()) + 1)
        events = self._log.gather(eid)
        return self.past_of(events.src, events.dst, events.t)

    def past_of(
        self, src: Tensor, dst: Tensor, t: Tensor, limit: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Do the same as `past` for any pairs at ticks, by events before log positions `limit`."""
        return self.past_at(self.last_of(src, dst, t, limit), t)

    def last_of(
        self, src: Tensor, dst: Tensor, t: Tensor, limit: Tensor | None = None, num: int = DEPTH
    ) -> Tensor:
        """Return the last events of pairs with visible labels, as `LastEvents.before`."""
        cut = torch.tensor([self.cut(time) for time in t.tolist()], dtype=torch.int64)
        cut = cut if limit is None else torch.minimum(cut, limit)
        self.upto(int(cut.max()) if len(cut) else 0)
        deep = num
        while True:
            last = self._last.before(src, dst, cut, deep)
            if not self._has_unknown:
                return last
            known = (last >= 0) & (self._classes[last.clamp(min=0)] >= 0)
            is_short = (known.sum(-1) < num) & (last[:, :, -1] >= 0)
            if deep >= _DEEPEST or not is_short.any():
                break
            deep *= 4
        known_first = (~known).byte().argsort(dim=-1, stable=True)[:, :, :num]
        return last.where(known, -1).gather(-1, known_first)

    def past_at(self, last: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return classes and ages, as `past`, of lists of events `[N, 4, k]` at ticks `[N]`."""
        classes = torch.where(last < 0, -1, self._classes[last.clamp(min=0)])
        newest = last[:, :, 0]
        then = self._log.gather(newest.clamp(min=0).view(-1)).t.view_as(newest)
        return classes.long(), torch.where(newest < 0, -1, t.unsqueeze(1) - then)
