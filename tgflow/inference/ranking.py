"""The best of many candidates, found block by block; and who is a candidate if nobody says."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.graph import EventLog

_PAGE = 1 << 22


class Ranking(NamedTuple):
    """The candidates with the highest scores, best first."""

    nodes: Tensor
    """int64 `[B, k]`."""
    scores: Tensor
    """Float `[B, k]`, on the model's device; of equal scores, the earlier candidate comes first."""

    def merged(self, nodes: Tensor, scores: Tensor, k: int) -> Ranking:
        """Return the best `k` of these and of later candidates, `[B, n]` each."""
        nodes = torch.cat([self.nodes, nodes.to(self.nodes.device)], dim=1)
        ranked = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        return Ranking(nodes.gather(1, ranked.indices[:, :k]), ranked.values[:, :k])


class Destinations:
    """The distinct destinations of every prefix of a log, in the order of their first events.

    It reads on in the log when it is asked about more than it has read. Safe to use from any number
    of threads. An answer about the first `n` events never changes.

    Args:
        log: Log to follow; not modified.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._growing = threading.Lock()
        self._is_known = torch.zeros(0, dtype=torch.bool)
        nothing = torch.empty(0, dtype=torch.int64)
        self._known = (0, nothing, nothing)  # how far it has read, who there is, and since when

    def before(self, position: int) -> Tensor:
        """Return the destinations of the first `position` events, int64 `[D]`: do not write to it.

        Raises:
            IndexError: If the log has fewer.
        """
        if self._known[0] < position:
            with self._growing:
                while self._known[0] < position:
                    self._read_upto(min(position, self._known[0] + _PAGE))
        _, nodes, first = self._known
        return nodes[: int(torch.searchsorted(first, position))]

    def _read_upto(self, position: int) -> None:
        start, nodes, first = self._known
        dst, where = torch.unique(self._log.read(start, position).dst, return_inverse=True)
        met = torch.full_like(dst, position)
        met.scatter_reduce_(0, where, torch.arange(start, position), "amin")
        missing = self._log.num_nodes - len(self._is_known)
        self._is_known = torch.cat([self._is_known, self._is_known.new_zeros(missing)])
        new = ~self._is_known[dst]
        self._is_known[dst] = True
        met, order = met[new].sort()
        self._known = position, torch.cat([nodes, dst[new][order]]), torch.cat([first, met])
