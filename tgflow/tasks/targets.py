"""Which event has which label, and from when a label may be seen."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import chain

import torch
from torch import Tensor

from tgflow.graph import EventLog
from tgflow.train.learning_task import NO_LABEL

DEPTH = 8
"""Earlier labels of each list that an event sees."""


class LabelHistory:
    """The labels of a log as classes, and the earlier ones that each event sees.

    An event at time t sees labels of events before `t - delay` alone, of its own batch, too. So
    what it sees is a function of the log before it, and nothing of this is to be saved: the log is
    read as far as it is asked about. Some 100 bytes an event. Not for several threads at once.

    With two classes, labels above 0 are class 1 and all others class 0: as they are 0 and 1, or
    signs. With more, the classes are numbered by when a label occurs first.

    Args:
        log: Of the events.
        num_classes: Classes, at least 2.
        delay: Ticks after its event at which a label is known, at least 0.
        codes: The class of each label so far, to number them as another history does; it grows.
    """

    def __init__(
        self, log: EventLog, num_classes: int, delay: int = 0, codes: dict[int, int] | None = None
    ) -> None:
        self.num_classes, self.delay = num_classes, delay
        self._log = log
        self._classes: list[int] = []
        self._clock: list[int] = []
        """The latest time up to each event: late events do not turn it back."""
        self.codes: dict[int, int] = {} if codes is None else codes
        """The class of each label, of more than two classes; in the order of the classes."""
        self._first: dict[int, int] = {}
        """The log position of the first event of each class."""
        self._pairs: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._srcs: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._dsts: defaultdict[Hashable, list[int]] = defaultdict(list)

    def upto(self, stop: int) -> None:
        """Read the log up to a position.

        Raises:
            ValueError: If events have no labels, or more classes than there are to be.
        """
        start = len(self._classes)
        if stop <= start:
            return
        events = self._log.read(start, stop)
        if events.label is None:
            raise ValueError("the events have no labels; name their column by target=...")
        columns = (events.src, events.dst, events.t, events.label)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for eid, (src, dst, t, label) in enumerate(rows, start):
            self._classes.append(self._class_of(label))
            self._first.setdefault(self._classes[-1], eid)
            self._clock.append(max(t, self._clock[-1]) if self._clock else t)
            self._pairs[src, dst].append(eid)
            self._srcs[src].append(eid)
            self._dsts[dst].append(eid)

    def _class_of(self, label: int) -> int:
        if self.num_classes == 2:
            return int(label > 0)
        code = self.codes.setdefault(label, len(self.codes))
        if code >= self.num_classes:
            raise ValueError(
                f"label {label} is the one after {self.num_classes} others; say how many "
                "classes there may be: classes=..."
            )
        return code

    def classes(self, eid: Tensor) -> Tensor:
        """Return the classes of events, int64 `[N]` of positions `[N]`."""
        if not len(eid):
            return eid
        self.upto(int(eid.max()) + 1)
        return torch.tensor([self._classes[each] for each in eid.tolist()])

    def labels(self, codes: Tensor, t: Tensor) -> Tensor:
        """Return the labels of classes, of which there are more than two, as seen at times.

        Args:
            codes: Classes, int64 `[N]`.
            t: Of events that were read, int64 `[N]`.

        Returns:
            int64 `[N]`; `NO_LABEL` for a class that no label has had which is seen at that time.
        """
        known, size = [*self.codes], len(self._classes)
        return torch.tensor(
            [
                known[code] if self._first.get(code, size) < self.cut(time) else NO_LABEL
                for code, time in zip(codes.tolist(), t.tolist(), strict=True)
            ],
            dtype=torch.int64,
        )

    def cut(self, t: int) -> int:
        """Return the log position up to which events that were read are seen at a time."""
        return bisect_left(self._clock, t - self.delay)

    def past(self, eid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes that events see, and the ticks since the newest of each list.

        Args:
            eid: Log positions, int64 `[N]`.

        Returns:
            int64 `[N, 4, DEPTH]`, see `tgflow.batch.Targets.past`; and int64 `[N, 4]`, -1 where
            there are none.
        """
        if not len(eid):
            return eid.new_empty(0, 4, DEPTH), eid.new_empty(0, 4)
        self.upto(int(eid.max()) + 1)
        events = self._log.gather(eid)
        columns = (column.tolist() for column in (events.src, events.dst, events.t))
        rows, ages = [], []
        for src, dst, t in zip(*columns, strict=True):
            cut = self.cut(t)
            for positions in self._lists(src, dst):
                seen = bisect_left(positions, cut)
                rows.append(self._latest(positions, seen))
                ages.append(t - self._clock[positions[seen - 1]] if seen else -1)
        flat = torch.tensor([*chain.from_iterable(rows)])
        return flat.view(-1, 4, DEPTH), torch.tensor(ages).view(-1, 4)

    def _lists(self, src: int, dst: int) -> tuple[Sequence[int], ...]:
        """Return the positions of what an event's label may be like, ascending."""
        return (
            self._pairs.get((src, dst), ()),
            self._pairs.get((dst, src), ()),
            self._srcs.get(src, ()),
            self._dsts.get(dst, ()),
        )

    def _latest(self, positions: Sequence[int], stop: int) -> list[int]:
        """Return the classes of the last `DEPTH` events before the `stop`th, newest first."""
        latest = [self._classes[each] for each in positions[max(0, stop - DEPTH) : stop]]
        return latest[::-1] + [-1] * (DEPTH - len(latest))
