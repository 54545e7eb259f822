"""The event log: the total order that everything else refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow import _core
from tgflow.events import EventBatch

if TYPE_CHECKING:
    from tgflow.cuda.graph import DeviceGraph


class EventLog:
    """Append-only columns `src`, `dst`, `t` and, where the first batch has one, `label`.

    An event's position is its `eid`. Times never decrease along it, but for late events that a
    graph was told to merge in (`TemporalGraph.append(..., allow_late=True)`). One thread appends
    at a time, and any number may read meanwhile. Edge features live beside it, see
    `TemporalGraph.edge_x`.
    """

    def __init__(self) -> None:
        self._native = _core.EventLog()
        self._owned = True

    @classmethod
    def _of_graph(cls, graph: _core.TemporalGraph | DeviceGraph) -> EventLog:
        log = cls.__new__(cls)
        log._native = graph.log
        log._owned = False
        return log

    def __len__(self) -> int:
        return len(self._native)

    def append(self, events: EventBatch) -> int:
        """Add `events` (their features are not kept) and return the first one's position.

        Raises:
            ValueError: If a time is earlier than the one before it, a node id is too large, or only
                one of log and batch has labels. Nothing is changed then.
            RuntimeError: If the log belongs to a graph.
        """
        if not self._owned:
            raise RuntimeError("this log belongs to a graph; append to the graph instead")
        columns = NativeColumns(events)
        return self._native.append(*columns.addresses)

    @property
    def num_nodes(self) -> int:
        """The largest node id so far plus one, 0 for an empty log."""
        return self._native.num_nodes

    @property
    def t_last(self) -> int | None:
        """The latest time so far in ticks (the log's clock), None for an empty log."""
        return self._native.clock if len(self) else None

    def read(self, start: int, stop: int) -> EventBatch:
        """Return the events at `[start, stop)` as views, not copies: do not write to them.

        Raises:
            IndexError: If the range is not within the log.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"the log holds events [0, {len(self)}), asked for [{start}, {stop})")
        src, dst, t, label = self._native.columns(start, stop)
        return EventBatch.checked(
            torch.from_numpy(src),
            torch.from_numpy(dst),
            torch.from_numpy(t),
            label=None if label is None else torch.from_numpy(label),
        )

    def gather(self, eid: Tensor) -> EventBatch:
        """Return copies of the events at positions `eid`, int64 `[N]`, in any order.

        Raises:
            IndexError: If a position is not in the log.
        """
        if eid.dtype != torch.int64 or eid.dim() != 1:
            raise ValueError(f"eid must be int64 [N], got {eid.dtype} {list(eid.shape)}")
        eid = eid.contiguous()
        src, dst, t = torch.empty(3, len(eid), dtype=torch.int64).unbind(0)
        label = torch.empty_like(eid) if self._native.has_label else None
        self._native.gather(
            eid.data_ptr(),
            len(eid),
            src.data_ptr(),
            dst.data_ptr(),
            t.data_ptr(),
            0 if label is None else label.data_ptr(),
        )
        return EventBatch.checked(src, dst, t, label=label)

    def position(self, t: int) -> int:
        """Return how many events the log held when its clock reached `t`: a time made a cut-off.

        Without late events these are the events strictly before `t`.
        """
        return self._native.position(t)


class NativeColumns:
    """A batch's columns in the layout the core reads; keeps them alive while it does."""

    def __init__(self, events: EventBatch) -> None:
        columns = (events.src, events.dst, events.t, events.label)
        self._kept = [None if c is None else c.cpu().contiguous() for c in columns]
        src, dst, t, label = (0 if c is None else c.data_ptr() for c in self._kept)
        self.addresses = (src, dst, t, label, len(events))
