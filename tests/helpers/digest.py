"""A digest of a sequence of events, however it is cut into batches."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from tgflow.events import EventBatch
from tgflow.ids import NodeIds


class EventDigest:
    """Digests what events say: the stream's own ids, times, labels and features, in their order.

    Two sequences have one digest if they hold the same events in the same order; dense ids and the
    sizes of the batches do not matter.

    Args:
        ids: The map that gave the events their dense ids.
    """

    def __init__(self, ids: NodeIds) -> None:
        self.num_events = 0
        self._ids = ids
        self._columns = {name: hashlib.sha256() for name in ("src", "dst", "t", "label", "x")}

    def add(self, events: EventBatch) -> EventDigest:
        """Add the next events of the sequence."""
        self.num_events += len(events)
        for name, dense in (("src", events.src), ("dst", events.dst)):
            self._columns[name].update("".join(f"{v!r}\n" for v in self._raw(dense)).encode())
        for name, column in (("t", events.t), ("label", events.label), ("x", events.x)):
            if column is not None:
                self._columns[name].update(column.contiguous().numpy().tobytes())
        return self

    def _raw(self, dense: Tensor) -> list[int] | list[str]:
        return self._ids.decode(dense.to(torch.int64))

    def hexdigest(self) -> str:
        """Return the digest of all events so far."""
        parts = [str(self.num_events), *(h.hexdigest() for h in self._columns.values())]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()
