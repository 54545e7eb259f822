"""From columns of events to a batch with dense ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tgflow.events import COLUMNS, EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.rows.checks import Float32s, Int64s
from tgflow.streams.rows.columns import EventColumns

_IDS = {"src", "dst"}


def to_batch(events: EventColumns, ids: NodeIds) -> EventBatch:
    """Return events with dense ids; `ids` gives new ones to nodes not yet seen."""
    src, dst = ids.encode(events.src, events.dst)
    others: dict[str, Any] = {
        n: _tensor(c) for n, c in events.columns().items() if n in COLUMNS.keys() - _IDS
    }
    return EventBatch(src, dst, **others)


def _tensor(column: Int64s | Float32s) -> Tensor:
    """Return a column as a tensor, copied if it may not be written to, as Arrow's may not."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())
