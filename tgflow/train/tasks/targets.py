"""Labels of events as classes, and the time from which each is visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.checkpoint import Checkpoint, Component, UntrustedCheckpoint, check_like
from tgflow.checkpoint.typed import read_natural
from tgflow.graph import EventLog, TemporalGraph
from tgflow.graph.events import NO_LABEL, EventBatch, LateLabels
from tgflow.graph.host import HostGraph
from tgflow.graph.log import BySince, Rows
from tgflow.plan.count_lookup import LastEvents

DEPTH = 8
"""Earlier labels of each list that are visible to an event."""
_DEEPEST = 64 * DEPTH
"""Earlier events of each list among which known labels are looked for."""
_MINUS = -2
"""Stands for the label -1 among classes, of which -1 is no label."""


class View(NamedTuple):
    """What `N` queries see of labels."""

    t: Tensor
    """int64 `[N]`: their ticks."""
    cut: Tensor
    """int64 `[N]`: own labels are those of events before these positions."""
    at: Tensor
    """int64 `[N]`: late labels are as seen from these positions."""
    since: int = 0
    """Events from this log position on are seen."""
    fresh: LateLabels | None = None
    """Late labels, in order, that those at a later time than these see, too."""


class _Lists:
    """The events with labels from a log position on, by their nodes."""

    def __init__(self, log: EventLog, since: int) -> None:
        self._log, self.since = log, since
        self._late, self._held = HostGraph("directed"), Rows(2)
        self._num_late = int(log.late.num_known(torch.tensor(since))) if since else 0
        self.late = LastEvents(EventLog(self._late.log))
        """Those of late labels, in the order in which these became known."""

    def cut(self, num_known: Tensor) -> Tensor:
        """Return how many of these the first ones of all late labels are, int64 `[N]`."""
        first, last = self._num_late, int(num_known.max())
        if first < last:
            self._num_late, eid = last, self._log.late.known(slice(first, last)).eid
            places, eid = torch.arange(first, last)[eid >= self.since], eid[eid >= self.since]
            order = self._held.stop + torch.arange(len(eid))
            if len(eid):
                events = self._log.gather(eid)
                self._late.stage(EventBatch.checked(src=events.src, dst=events.dst, t=order))
                self._late.record()
                self._held.add(eid, places)
        return torch.searchsorted(self._held.all[1], num_known)

    def events(self, found: Tensor) -> Tensor:
        """Return the events of numbers in `late`, -1 for -1."""
        return torch.where(found < 0, -1, self._held.at(found.flatten())[0].view_as(found))


class LabelHistory(Component):
    """The labels of a log as classes, and the earlier ones visible to each event.

    At time t only labels of events before `t - delay` are visible, also those of the same batch,
    and the late ones known at the event's position. They are a function of the log up to it, which
    is read as far as needed. Takes some 40 bytes an event, plus the same for each new pair; and as
    much for late labels. Not thread-safe.

    Within a horizon labels of earlier events are not visible. Which classes there are and which of
    them occurred is not forgotten: that is saved.

    With two classes, labels are 0 and 1, or -1 and 1, and 1 is class 1. With more, the classes are
    numbered by first occurrence of their label. `NO_LABEL` is of class -1: it is not shown.
    """

    name = "label_classes"

    def __init__(
        self,
        graph: TemporalGraph,
        num_classes: int,
        delay: int = 0,
        codes: dict[int, int] | None = None,
    ) -> None:
        self.num_classes, self.delay = num_classes, delay
        log = self._log = graph.log
        self._last = LastEvents(log)
        self._lists = BySince[_Lists](lambda since: _Lists(log, since))
        self._classes = Rows(1, torch.int32)
        """Classes of events by their own labels."""
        self._classes.drop(log.first)
        self._labeled: Rows | None = None
        """Events that have labels of their own; None: all."""
        self._num_late = 0
        """Late labels whose classes were numbered."""
        self._asked: tuple[tuple[int, ...], LateLabels] | None = None
        """The log and position of the latest questions, and `LateEntries.fresh`."""
        self.codes: dict[int, int] = {} if codes is None else codes
        """The class of each label, of more than two classes; in the order of the classes."""
        self._first: dict[int, int] = {}
        """The first event of each class by its own label."""
        self._first_late: dict[int, int] = {}
        """The first event that sees a late label of each class."""

    def upto(self, stop: int) -> None:
        """Read the events before a position, and the late labels that they see."""
        if stop <= self._classes.stop:
            return
        self._drop(self._log.first)
        start = self._classes.stop
        label = self._log.read(start, stop).label
        if label is None:
            raise ValueError("the events have no labels; name their column by target=...")
        known = label != NO_LABEL
        eid = known.nonzero().flatten() + start
        late, known_at = self._read_late(stop)
        self._number(torch.cat([late, label[known]]), torch.cat([known_at, eid]), len(late))
        added = torch.full_like(label, -1)
        added[known] = self._codes_of(label[known])
        self._classes.add(added)
        if self._labeled is None and len(eid) < stop - start:
            self._labeled = Rows(1)
            if start > self._classes.first:
                self._labeled.add(torch.arange(self._classes.first, start))
        if self._labeled is not None and len(eid):
            self._labeled.add(eid)

    def _drop(self, first: int) -> None:
        """Forget the events before a position, which the log has forgotten."""
        self._classes.drop(first)
        if self._labeled is not None:
            before = int(torch.searchsorted(self._labeled.all[0], first))
            self._labeled.drop(self._labeled.first + before)

    def _read_late(self, stop: int) -> tuple[Tensor, Tensor]:
        """Return the late labels that the events before `stop` are the first to see, from where."""
        late, first = self._log.late, self._num_late
        if not len(late):
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        self._num_late = int(late.num_known(torch.tensor(stop - 1)))
        found = late.known(slice(max(first, late.first_place), self._num_late))
        is_known = found.label != NO_LABEL
        return found.label[is_known], found.known_at[is_known]

    def _number(self, label: Tensor, position: Tensor, num_late: int) -> None:
        """Number new labels by the position where each occurs first, late ones first."""
        codes = {-1: _MINUS}
        if self.num_classes > 2:
            order, codes = position.argsort(stable=True), self.codes
            kinds, first = np.unique(label[order].numpy(), return_index=True)
            for kind in kinds[first.argsort()].tolist():
                if codes.setdefault(kind, len(codes)) >= self.num_classes:
                    raise ValueError(
                        f"label {kind} would be class {self.num_classes + 1} of "
                        f"{self.num_classes}; raise the number of classes: classes=..."
                    )
        late, own = slice(num_late), slice(num_late, None)
        for firsts, rows in ((self._first_late, late), (self._first, own)):
            kinds, first = np.unique(label[rows].numpy(), return_index=True)
            for kind, place in zip(kinds.tolist(), position[rows][first].tolist(), strict=True):
                if kind in codes:
                    firsts.setdefault(codes[kind], place)

    def _codes_of(self, label: Tensor) -> Tensor:
        """Return the classes of labels, int64; -1: of those that are not known, or not yet read."""
        if self.num_classes == 2:
            is_known = label != NO_LABEL
            if (wrong := is_known & ((label < -1) | (label > 1))).any():
                raise ValueError(
                    f"label {int(label[wrong][0])} is none of 0 and 1, or -1 and 1, so which class "
                    "it is of is not known; pass positive_label=..., or classes=..."
                )
            return (label > 0).long().where(is_known, -1)
        kinds, which = np.unique(label.numpy(), return_inverse=True)
        codes = torch.tensor([self.codes.get(kind, -1) for kind in kinds.tolist()]).long()
        return codes[torch.from_numpy(which)]

    def classes(self, eid: Tensor, at: int | Tensor | None = None) -> Tensor:
        """Return the classes of events, int64 `[N]` of positions `[N]`; -1: not known.

        Late labels are seen from positions `at`; None: own labels alone.
        """
        if not len(eid):
            return eid
        self.upto(int(eid.max()) + 1)
        own = self._own(eid)
        if at is None or not len(self._log.late):
            return own
        self.upto(1 + int(at.max() if isinstance(at, Tensor) else at))
        return self._late_classes(eid, at, own)

    def _own(self, eid: Tensor) -> Tensor:
        return torch.where(self._classes.has(eid), self._classes.at(eid)[0].long(), -1)

    def _late_classes(self, eid: Tensor, at: int | Tensor, own: Tensor) -> Tensor:
        """Return the classes of events by their late labels, or else `own`."""
        is_late = self._log.late.find(eid, at) >= 0
        label = self._log.late.labels(eid, at, torch.full_like(eid, NO_LABEL))
        return torch.where(is_late, self._codes_of(label), own)

    def labels(self, codes: Tensor, t: Tensor, at: Tensor) -> Tensor:
        """Return the labels of classes, as seen at ticks and log positions.

        Of two classes 0 is -1 once that was seen; of more, `NO_LABEL` for one that was not.
        """
        if self.num_classes == 2:
            return torch.where((codes == 0) & self._was_seen(_MINUS, t, at), -1, codes)
        found, known = torch.full_like(codes, NO_LABEL), [*self.codes]
        for code in torch.unique(codes).tolist():
            if code < len(known):
                found[(codes == code) & self._was_seen(code, t, at)] = known[code]
        return found

    def first_of(self, labels: Sequence[int], t: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes of labels, int64 `[L]`, and which were seen, bool `[B, L]`.

        The latter is of ticks and positions `[B]`; the class of one that was never seen is 0.
        """
        codes = [self.codes.get(label, -1) for label in labels]
        was_seen = torch.stack([self._was_seen(code, t, at) for code in codes], dim=1)
        return torch.tensor(codes).clamp(min=0), was_seen

    def _was_seen(self, code: int, t: Tensor, at: Tensor) -> Tensor:
        is_own = self._first.get(code, INT64_MAX) < self._cuts(t, self._since(at))
        return is_own | (self._first_late.get(code, INT64_MAX) <= at)

    def cut(self, t: int, since: int = 0) -> int:
        """Return the log position up to which own labels of events are visible at a time.

        At least `since`, the beginning of the horizon, whenever earlier events are forgotten.
        """
        return max(since, self._log.position(max(t - self.delay, INT64_MIN)))

    def _since(self, at: Tensor) -> int:
        return self._log.since(int(at.min())) if len(at) else 0

    def num_labeled(self, position: int) -> int:
        """Return the number of events before a position, which were read, with own labels."""
        if self._labeled is None:
            return position
        return self._labeled.first + int(torch.searchsorted(self._labeled.all[0], position))

    def labeled(self, index: Tensor) -> Tensor:
        return index if self._labeled is None else self._labeled.at(index)[0]

    def late_classes(self, places: Tensor) -> Tensor:
        """Return the classes of late labels at places in the order in which they became known."""
        return self._codes_of(self._log.late.known(places).label)

    def first_classes(self, eid: Tensor, at: int) -> Tensor:
        """Return the classes by own labels, or else by the first late ones, as seen from `at`."""
        own, place = self.classes(eid), self._log.late.find(eid, at)
        while len(place) and (place >= 0).any():
            before = self._log.late.known(place.clamp(min=0)).before.where(place >= 0, -1)
            if (before < 0).all():
                break
            place = torch.where(before < 0, place, before)
        first = self.late_classes(place.clamp(min=0)) if (place >= 0).any() else own
        return torch.where((own < 0) & (place >= 0), first, own)

    def late(self, places: Tensor) -> Tensor:
        return self._log.late.known(places).eid

    def past(self, eid: Tensor, since: int = 0) -> tuple[Tensor, Tensor]:
        """Return the classes visible to events, and the ticks since the newest of each list."""
        if not len(eid):
            return eid.new_empty(0, 4, DEPTH), eid.new_empty(0, 4)
        self.upto(int(eid.max()) + 1)
        events = self._log.gather(eid)
        view = View(events.t, self._cuts(events.t, since), eid, since)
        return self.past_at(self.last_of(events.src, events.dst, view), view)

    def asked(self, t: Tensor, limit: Tensor) -> View:
        """Return what questions at ticks `t` see of the labels before log positions `limit`.

        A question about a time before that of the event at its limit sees the late labels that the
        last event up to then does; any other those that an event of its time there would see.
        """
        since = self._since(limit)
        cut, later = torch.minimum(self._cuts(t, since), limit), torch.empty_like(t)
        self._log.native.positions(t.clamp(max=INT64_MAX - 1) + 1, later)
        at = torch.minimum(limit, later) - 1
        fresh, ends = None, torch.unique(limit[at == limit - 1])
        if len(self._log.late) and len(ends) == 1:
            key = int(ends), len(self._log.late), len(self._log)
            if self._asked is None or self._asked[0] != key:
                self._asked = key, self._log.late.fresh(key[0])
            fresh = self._asked[1]
        return View(t, cut, at, since, fresh)

    def _cuts(self, t: Tensor, since: int) -> Tensor:
        return torch.tensor([self.cut(time, since) for time in t.tolist()], dtype=torch.int64)

    def last_of(self, src: Tensor, dst: Tensor, view: View, num: int = DEPTH) -> Tensor:
        """Return the last events of pairs with visible labels, as `LastEvents.before`.

        Those whose labels are late are the ones whose labels became known last.
        """
        self.upto(max(int(view.cut.max()), 1 + int(view.at.max())) if len(src) else 0)
        parts, lists = [], self._lists.at(view.since)
        if self._labeled is None or self._labeled.stop or not len(self._log.late):
            parts.append(self._known_of(self._last, src, dst, view.cut, num, view))
        if len(src) and len(self._log.late) and self._num_late:
            cut = lists.cut(self._log.late.num_known(view.at))
            parts.append(self._known_of(lists.late, src, dst, cut, num, view, lists))
        if view.fresh is not None and len(view.fresh):
            parts.append(self._fresh_of(src, dst, view, num))
        if not parts:
            return torch.full((len(src), 4, num), -1)
        return _newest(torch.cat(parts, dim=2), num) if len(self._log.late) else parts[0]

    def _known_of(
        self,
        last: LastEvents,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        num: int,
        view: View,
        late: _Lists | None = None,
    ) -> Tensor:
        """Return the last events of lists, or of late labels, with known labels, `[N, 4, num]`."""
        deep = num
        while True:
            found = last.before(src, dst, cut, deep, view.since if late is None else 0)
            if self._labeled is None and not len(self._log.late):
                return found
            if late is not None:
                found = late.events(found)
                known = ~_is_repeated(found)  # as after a correction
            else:
                known = self._own(found.flatten()).view_as(found) >= 0
            known &= self.seen(found, view) >= 0
            is_short = (known.sum(-1) < num) & (found[:, :, -1] >= 0)
            if deep >= _DEEPEST or not is_short.any():
                break
            deep *= 4
        known_first = (~known).byte().argsort(dim=-1, stable=True)[:, :, :num]
        return found.where(known, -1).gather(-1, known_first)

    def _fresh_of(self, src: Tensor, dst: Tensor, view: View, num: int) -> Tensor:
        """Return the events of fresh late labels in the lists of pairs, the latest `num` known."""
        assert view.fresh is not None
        eid, t = view.fresh.eid, view.fresh.t
        events = self._log.gather(eid)
        found = torch.full((len(src), 4, num), -1)
        for row, (u, v, time) in enumerate(
            zip(src.tolist(), dst.tolist(), view.t.tolist(), strict=True)
        ):
            n = int(torch.searchsorted(t, time))
            u_first, v_last = events.src[:n] == u, events.dst[:n] == v
            back = (events.src[:n] == v) & (events.dst[:n] == u)
            for place, which in enumerate((u_first & v_last, back, u_first, v_last)):
                own = torch.unique(eid[:n][which])[-num:]
                found[row, place, : len(own)] = own
        return found.where(self.seen(found, view) >= 0, -1)

    def seen_by(self, eid: Tensor, t: Tensor, limit: Tensor) -> Tensor:
        """Return the classes of events `[N]` as one question sees them, see `asked`; -1: none."""
        self.upto(int(limit))
        view = self.asked(t, limit)
        return self.seen(eid.where(eid < limit, -1).unsqueeze(0), view)[0]

    def seen(self, eid: Tensor, view: View) -> Tensor:
        """Return the classes of events `[N, ...]` as their query sees them; -1: none."""
        each = (-1, *[1] * (eid.dim() - 1))
        is_seen = (eid >= view.since) & (eid < view.cut.view(each))
        own = torch.where(is_seen, self._own(eid.flatten()).view_as(eid), -1)
        if not len(self._log.late):
            return own
        at = view.at.view(each).expand_as(eid).flatten()
        found = self._late_classes(eid.flatten(), at, own.flatten()).view_as(eid)
        found = found.where(eid >= view.since, -1)
        if view.fresh is None or not len(view.fresh):
            return found
        order = view.fresh.eid.argsort(stable=True)
        fresh = LateLabels(*(x[order] for x in (view.fresh.eid, view.fresh.label, view.fresh.t)))
        codes = self._codes_of(fresh.label)
        for row, time in enumerate(view.t.tolist()):
            is_seen = fresh.t < time
            known, code = fresh.eid[is_seen], codes[is_seen]
            place = torch.searchsorted(known, eid[row].contiguous(), right=True) - 1  # its last one
            hit = (place >= 0) & (eid[row] >= 0)
            hit &= known[place.clamp(min=0)] == eid[row] if len(known) else False
            if hit.any():
                found[row] = torch.where(hit, code[place.clamp(min=0)], found[row])
        return found

    def save(self, writer: Checkpoint) -> None:
        """Save the classes that occurred before the position of a checkpoint, with a horizon."""
        if self._log.horizon is None:
            return
        stop = read_natural(writer.meta, "position")
        self.upto(stop)
        label_of = {code: label for label, code in self.codes.items()}
        columns = [
            (code, label_of.get(code, 0), self._first.get(code, -1), self._first_late.get(code, -1))
            for code in sorted(self._first.keys() | self._first_late.keys())
        ]
        rows = torch.tensor(columns, dtype=torch.int64).view(-1, 4)
        rows[:, 2:] = torch.where(rows[:, 2:] < stop, rows[:, 2:], -1)
        writer.put(self.name, {"rows": rows[(rows[:, 2:] >= 0).any(1)]}, volatile=True)

    def load(self, reader: Checkpoint) -> None:
        if self.name not in reader.sections:
            return
        found = reader.get(self.name)
        rows = found["rows"]
        check_like(self.name, found, {"rows": torch.empty(len(rows), 4, dtype=torch.int64)})
        if len(rows) > self.num_classes + 1:
            raise UntrustedCheckpoint(f"{self.name} has {len(rows)} of {self.num_classes} classes")
        for code, label, first, first_late in rows.tolist():
            if self.num_classes > 2:
                self.codes[label] = code
            for place, firsts in ((first, self._first), (first_late, self._first_late)):
                if place >= 0:
                    firsts[code] = place

    def past_at(self, last: Tensor, view: View) -> tuple[Tensor, Tensor]:
        """Return classes and ages, as `past`, of lists of events `[N, 4, k]`."""
        newest = last[:, :, 0]
        then = self._log.gather(newest.clamp(min=self._log.first).view(-1)).t.view_as(newest)
        ages = torch.where(newest < 0, -1, view.t.unsqueeze(1) - then)
        return self.seen(last, view), ages


def _newest(eid: Tensor, num: int) -> Tensor:
    """Return the `num` newest distinct events of each list, `[N, 4, num]`."""
    eid = eid.sort(dim=-1, descending=True).values
    eid[..., 1:][eid[..., 1:] == eid[..., :-1]] = -1
    return eid.sort(dim=-1, descending=True).values[..., :num]


def _is_repeated(eid: Tensor) -> Tensor:
    """Return which events occur earlier in their list, bool `[N, 4, k]`."""
    order = eid.argsort(dim=-1, stable=True)
    grouped, again = eid.gather(-1, order), torch.zeros_like(eid, dtype=torch.bool)
    again.scatter_(-1, order[..., 1:], grouped[..., 1:] == grouped[..., :-1])
    return again
