"""Per-event attributes used to slice comparison metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgflow.counts import Count
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan.counts import CountHistory

Facts = dict[str, NDArray[Any]]
_ASKED = tuple(Count(of) for of in ("pair", "reverse", "src", "src_as_dst", "dst", "dst_as_src"))
_AT_ONCE = 1 << 16


def event_facts(graph: TemporalGraph, start: int, stop: int) -> Facts:
    """Return attributes of the events of a graph at `[start, stop)`, each `[N]` by name.

    Earlier events are those with a strictly smaller time.

    * `eid`, `src`, `dst`, `t`: int64: the event.
    * `num_pair`, `num_reverse`: int64: earlier events of the pair, forward and in reverse.
    * `num_src`, `num_dst`: int64: earlier events of its source and of its destination.
    * `pair_age`: float64: seconds since the pair's last event, in either direction; -1 without one.
    * `tied`: bool: whether the event before it has the same time.
    """
    history = CountHistory(graph, _ASKED)
    parts = [
        _facts(graph, history, first, min(first + _AT_ONCE, stop))
        for first in range(start, stop, _AT_ONCE)
    ] or [_facts(graph, history, start, start)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _facts(graph: TemporalGraph, history: CountHistory, start: int, stop: int) -> Facts:
    events = graph.log.read(start, stop)
    eid = torch.arange(start, stop)
    plain = EventBatch.checked(src=events.src, dst=events.dst, t=events.t)
    none = torch.empty(len(eid), 0, dtype=torch.int64)
    answers = history.read(history.answer(plain, None, none, limit=eid, stop=stop), 1)
    pair, reverse, src, src_as_dst, dst, dst_as_src = (each.num[:, 0] for each in answers)
    ages = torch.stack([answers[0].age[:, 0], answers[1].age[:, 0]])
    never = torch.iinfo(torch.int64).max
    age = torch.where(ages < 0, never, ages).min(0).values
    seconds = torch.where(age == never, -1.0, age.double() * graph.seconds_per_tick)
    before = graph.log.read(max(start - 1, 0), stop).t
    tied = torch.zeros(len(eid), dtype=torch.bool)
    tied[len(eid) - len(before) + 1 :] = before[1:] == before[:-1]
    columns = {
        "eid": eid,
        "src": events.src,
        "dst": events.dst,
        "t": events.t,
        "num_pair": pair,
        "num_reverse": reverse,
        "num_src": src + src_as_dst,
        "num_dst": dst + dst_as_src,
        "pair_age": seconds,
        "tied": tied,
    }
    return {name: column.clone().numpy() for name, column in columns.items()}
