"""Slow and obvious: a graph that is appended to, corrected and made to forget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tgflow.choices import Direction
from tgflow.events import EventBatch, empty_events
from tgflow.testing.reference import ReferenceGraph


@dataclass
class Entry:
    """A neighbor, and the cut-offs that see it: `seen_from <= before < gone_from`."""

    t: int
    eid: int
    nbr: int
    seen_from: int
    gone_from: int | None = None

    def is_seen(self, t: int, before: int) -> bool:
        """Whether a query at `t` that knows the events below `before` sees it."""
        gone = self.gone_from is not None and before >= self.gone_from
        return self.t < t and before >= self.seen_from and not gone


class ChangingReference(ReferenceGraph):
    """As `TemporalGraph`, every entry with its own history."""

    def __init__(self, direction: Direction) -> None:
        super().__init__(empty_events(), direction)
        self.direction = direction
        self.events: list[tuple[int, int, int]] = []
        self.labels: list[int] = []
        self.t_last: int | None = None
        self.entries: dict[int, list[Entry]] = {}
        self.blind_below: dict[int, int] = {}
        """Per node: cut-offs whose past has been given up."""
        self.late_until: dict[int, int] = {}

    def append(self, events: EventBatch) -> None:
        """Add events, late or not, as one batch."""
        rows = list(zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True))
        end = self.size + len(rows)
        late = bool(rows) and self.t_last is not None and rows[0][2] < self.t_last
        for eid, (src, dst, t) in enumerate(rows, start=self.size):
            ends = [(src, dst)]
            if self.direction != "directed" and src != dst:
                ends.append((dst, src))
            for node, nbr in ends:
                entry = Entry(t, eid, nbr, seen_from=end if late else eid + 1)
                self.entries.setdefault(node, []).append(entry)
                if late:
                    self.late_until[node] = end
        self.events += rows
        self.labels += [0] * len(rows) if events.label is None else events.label.tolist()
        self.size = end
        if rows:
            self.t_last = max(rows[-1][2], rows[-1][2] if self.t_last is None else self.t_last)

    def seen(self, node: int, t: int, before: int) -> list[tuple[int, int, int]]:
        """As `ReferenceGraph.seen`."""
        before = min(before, self.size)
        if before < self.blind_below.get(node, 0):
            return []
        entries = self.entries.get(node, [])
        return sorted((e.t, e.eid, e.nbr) for e in entries if e.is_seen(t, before))

    def remove(self, is_gone: Callable[[int, Entry], bool]) -> int:
        """Remove what `is_gone(node, entry)` names, as of now; returns how many entries."""
        gone = [
            entry
            for node, entries in self.entries.items()
            for entry in entries
            if entry.gone_from is None and is_gone(node, entry)
        ]
        for entry in gone:
            entry.gone_from = self.size
        return len(gone)

    def keep_latest(self, max_count: int) -> int:
        """Remove each node's oldest entries until it has `max_count`."""
        kept: dict[int, set[int]] = {}
        for node, entries in self.entries.items():
            now = sorted((e.t, e.eid) for e in entries if e.gone_from is None)
            kept[node] = {eid for _, eid in now[max(0, len(now) - max_count) :]}
        return self.remove(lambda node, entry: entry.eid not in kept[node])

    def compact(self) -> None:
        """Give up what was removed, and the pasts into which events were merged late."""
        for node, entries in self.entries.items():
            entries[:] = [entry for entry in entries if entry.gone_from is None]
            if not entries:
                self.blind_below.pop(node, None)
                self.late_until.pop(node, None)
            elif node in self.late_until:
                self.blind_below[node] = self.late_until[node]

    @property
    def num_entries(self) -> int:
        """Entries that are there now."""
        return sum(e.gone_from is None for entries in self.entries.values() for e in entries)
