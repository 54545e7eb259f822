"""The published protocol of offline evaluation: chronological split with unseen nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.base.keys import derive_key
from tgflow.graph.events import EventBatch


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Training, validation and test events of a log, chronological."""

    train: Tensor
    """int64 `[T]`: positions of the training events, ascending; none touches a new node."""
    val_start: int
    """Position of the first validation event; training events lie before it."""
    test_start: int
    """Position of the first test event; the test part ends with the log."""
    touches_new: Tensor
    """bool `[N]`: whether an event touches a node that no training event does."""


def chronological_split(
    events: EventBatch,
    *,
    val_ratio: float = 0.15,
    test_ratio: float = 0.15,
    new_node_ratio: float = 0.1,
    seed: int = 0,
    starts: tuple[int, int] | None = None,
) -> Split:
    """Split events by quantiles of time, as DyGLib does, so that equal times stay together.

    Some nodes that appear after the training part are drawn to be new: training sees none of their
    events. Their number is a share of all nodes. `starts`, the positions of the first validation
    and test events, replace the ratios.
    """
    if not (val_ratio > 0 and test_ratio > 0 and val_ratio + test_ratio < 1):
        raise ValueError(
            "val_ratio and test_ratio must be above 0 and leave events to train on, "
            f"got {val_ratio} and {test_ratio}"
        )
    if not 0 <= new_node_ratio < 1:
        raise ValueError(f"new_node_ratio must be in [0, 1), got {new_node_ratio}")
    val_start = training_end(events.t, val_ratio, test_ratio)
    test_start = _after_quantile(events.t, 1 - test_ratio)
    if starts is not None:
        val_start, test_start = starts
    nodes, num_events = torch.cat([events.src, events.dst]), len(events)
    num_nodes = int(nodes.max()) + 1 if num_events else 0
    late = torch.cat([events.src[val_start:], events.dst[val_start:]]).unique().tolist()  # type: ignore[no-untyped-call]
    num_new = int(new_node_ratio * len(nodes.unique()))  # type: ignore[no-untyped-call]
    is_new = torch.zeros(num_nodes, dtype=torch.bool)
    is_new[sorted(late, key=lambda node: derive_key(seed, node))[:num_new]] = True
    touches_drawn = is_new[events.src] | is_new[events.dst]
    train = (~touches_drawn[:val_start]).nonzero().flatten()
    parts = {
        "training": len(train),
        "validation": test_start - val_start,
        "test": num_events - test_start,
    }
    for name, size in parts.items():
        if size == 0:
            raise ValueError(
                f"the split leaves no {name} events: {num_events} events gave {parts}; use more "
                "events, other ratios, or distinct times"
            )
    known = torch.zeros(num_nodes, dtype=torch.bool)
    known[events.src[train]] = True
    known[events.dst[train]] = True
    return Split(train, val_start, test_start, ~(known[events.src] & known[events.dst]))


def training_end(t: Tensor, val_ratio: float, test_ratio: float) -> int:
    """Return the number of events before validation, from all events' times `t`."""
    return _after_quantile(t, 1 - val_ratio - test_ratio)


def _after_quantile(t: Tensor, q: float) -> int:
    """Return the number of times at or below the `q` quantile, interpolated as in numpy."""
    if not len(t):
        return 0
    place = math.floor(q * (len(t) - 1) + 1e-9)  # 0.4 * 20 is 8, not the 7.99... of 1 - 0.3 - 0.3
    return int(torch.searchsorted(t, t[place], right=True))
