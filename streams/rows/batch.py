"""From columns of events to a batch with dense ids."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.rows.checks import Float32s, Int64s
from tgflow.streams.rows.columns import EventColumns


def to_batch(events: EventColumns, ids: NodeIds) -> EventBatch:
    """Return events with dense ids; `ids` gives new ones to nodes not yet seen."""
    src, dst = ids.encode(events.src, events.dst)
    return EventBatch(
        src,
        dst,
        _tensor(events.t),
        None if events.x is None else _tensor(events.x),
        None if events.label is None else _tensor(events.label),
    )


def _tensor(column: Int64s | Float32s) -> Tensor:
    """Return a column as a tensor, copied if it may not be written to, as Arrow's may not."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())
