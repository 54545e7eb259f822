"""Injected anomalies: a share of the last events is changed, and labeled."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.base.choices import Injection
from tgflow.base.keys import derive_key
from tgflow.graph import TemporalGraph


def inject(
    graph: TemporalGraph, kind: Injection, share: float, *, start: int, seed: int
) -> tuple[TemporalGraph, Tensor]:
    """Return a graph in which some events are replaced, and their positions.

    Times and features are unchanged, so that positions and the split are, too.
    """
    events = graph.log.read(0, graph.num_events)
    num = max(2, -int(-share * (len(events) - start) // 1))
    pool = torch.unique(events.dst)
    if len(events) - start < num or len(pool) < 2:
        raise ValueError(f"too few events for anomalies: {len(events) - start} may change")
    generator = torch.Generator().manual_seed(derive_key(seed, start) >> 1)
    order = torch.randperm(len(events) - start, generator=generator)
    places = start + order[:num].sort().values
    src, dst, label = events.src.clone(), events.dst.clone(), torch.zeros_like(events.src)
    if kind == "structural":
        step = torch.randint(1, len(pool), (num,), generator=generator)
        own = torch.searchsorted(pool, dst[places])
        dst[places] = pool[(own + step) % len(pool)]
    else:
        others = places.roll(1)
        src[places], dst[places] = events.src[others], events.dst[others]
    label[places] = 1
    changed = type(events)(src, dst, events.t.clone(), label=label)
    made = TemporalGraph.from_events(
        changed,
        graph.direction,
        time_unit=graph.time_unit,
        node_x=graph.node_x,
        device=graph.device,
        device_budget=graph.device_budget,
    )
    made.edge_x, made.feature_scale = graph.edge_x, graph.feature_scale
    if graph.node_scale is not None:
        made.node_scale = graph.node_scale
    return made, places
