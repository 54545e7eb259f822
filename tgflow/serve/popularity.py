"""Popularity of destinations, by which those of sources without events are ranked."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.graph.log import EventLog

_READ_AT_ONCE = 1 << 22
"""Events."""


class Popularity:
    """Events that nodes have received, as of any position of a graph's log; thread-safe.

    Those within the graph's horizon count. Each event is read once for growing positions, until the
    horizon moves, and again for an earlier position. Takes 17 bytes a node.

    Args:
        graph: Graph whose log to follow; not modified.
    """

    def __init__(self, graph: TemporalGraph) -> None:
        self._graph, self._lock = graph, threading.Lock()
        self._latest = _Received(graph.log, 0)

    def rank(
        self, src: Tensor, candidates: Tensor, k: int, cut: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return which sources have no event before a position, and the most popular candidates.

        Args:
            src: Sources, int64 `[N]`; negative ones have no events.
            candidates: Destinations, int64 `[n]`; negative ones have no events.
            k: Number of candidates to return; all, if there are fewer.
            cut: The position: earlier events count.

        Returns:
            Bool `[N]`; and candidates, int64 `[min(k, n)]`, those with the most events first, of
            equal ones that with the latest event, then the one with the lowest id. None if each
            source has events.
        """
        log, since = self._graph.log, max(self._graph.since(cut), self._graph.log.first)
        is_new = src < 0
        if since == 0 and cut == len(log) and not is_new.any():
            return is_new, None  # ids are those of the log's events
        with self._lock:
            held = self._latest
            if held.since != since or held.stop > cut:
                held = _Received(log, since)
            held.read(cut)
            if held.stop >= self._latest.stop:
                self._latest = held
            is_new = ~held.has_events(src)
            if not is_new.any():
                return is_new, None
            num, last = (column.numpy() for column in held.of(candidates))
        unknown = (candidates < 0).numpy()
        order = np.lexsort((np.where(unknown, 0, candidates.numpy()), unknown, -last, -num))
        return is_new, candidates[torch.from_numpy(order[:k])]


class _Received:
    """Number and position of the last of the events to each node, in a part of a log."""

    def __init__(self, log: EventLog, since: int) -> None:
        self._log, self.since, self.stop = log, since, since
        self._num, self._last = torch.empty(2, 0, dtype=torch.int64)
        self._seen = torch.empty(0, dtype=torch.bool)

    def read(self, stop: int) -> None:
        """Read the events up to a position."""
        if grown := self._log.num_nodes - len(self._num):
            self._num = torch.cat([self._num, self._num.new_zeros(grown)])
            self._last = torch.cat([self._last, self._last.new_full((grown,), -1)])
            self._seen = torch.cat([self._seen, self._seen.new_zeros(grown)])
        for start in range(self.stop, stop, _READ_AT_ONCE):
            end = min(start + _READ_AT_ONCE, stop)
            events = self._log.read(start, end)
            self._num += torch.bincount(events.dst, minlength=len(self._num))
            self._last.scatter_reduce_(0, events.dst, torch.arange(start, end), "amax")
            self._seen[events.src] = self._seen[events.dst] = True
        self.stop = stop

    def has_events(self, nodes: Tensor) -> Tensor:
        """Return whether nodes, int64 `[N]`, are ends of events."""
        known = (nodes >= 0) & (nodes < len(self._seen))
        return known & self._seen[nodes.where(known, 0)] if len(self._seen) else known

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers and last positions, int64 `[N]` each; 0 and -1 without events."""
        known = (nodes >= 0) & (nodes < len(self._num))
        at = nodes.where(known, 0)
        return self._num[at].where(known, 0), self._last[at].where(known, -1)
