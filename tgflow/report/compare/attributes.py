"""Per-event attributes used to slice comparison metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgflow.graph import TemporalGraph
from tgflow.graph.counts import Count, latest
from tgflow.graph.events import EventBatch
from tgflow.plan.count_lookup import CountHistory
from tgflow.train.tasks.labels import EventLabels

Facts = dict[str, NDArray[Any]]
_PAIR, _REVERSE = Count("pair"), Count("reverse")
_AGE = latest(_PAIR.age, _REVERSE.age)
_ASKED = (
    _PAIR.num,
    _REVERSE.num,
    Count("src").num + Count("src_as_dst").num,
    Count("dst").num + Count("dst_as_src").num,
    _AGE,
)
_AT_ONCE = 1 << 16


def event_facts(
    graph: TemporalGraph, start: int, stop: int, labels: EventLabels | None = None
) -> Facts:
    """Return attributes of the events of a graph at `[start, stop)`, each `[N]` by name.

    Earlier events are those with a strictly smaller time.

    * `eid`, `src`, `dst`, `t`: int64: the event.
    * `num_pair`, `num_reverse`: int64: earlier events of the pair, forward and in reverse.
    * `num_src`, `num_dst`: int64: earlier events of its source and of its destination.
    * `pair_age`: float64: seconds since the pair's last event, in either direction; -1 without one.
    * `tied`: bool: whether the event before it has the same time.
    * `class`: int64: the class of its label, with `labels`.
    """
    history = CountHistory(graph, _ASKED)
    parts = [
        _facts(graph, history, first, min(first + _AT_ONCE, stop))
        for first in range(start, stop, _AT_ONCE)
    ] or [_facts(graph, history, start, start)]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if labels is not None:
        found["class"] = labels.history.classes(torch.arange(start, stop)).numpy()
    return found


def _facts(graph: TemporalGraph, history: CountHistory, start: int, stop: int) -> Facts:
    events = graph.log.read(start, stop)
    eid = torch.arange(start, stop)
    plain = EventBatch.checked(src=events.src, dst=events.dst, t=events.t)
    none = torch.empty(len(eid), 0, dtype=torch.int64)
    answers = history.answer(plain, None, none, limit=eid, stop=stop)
    pair, reverse, src, dst, seconds = answers.squeeze(1).unbind(1)
    before = graph.log.read(max(start - 1, 0), stop).t
    tied = torch.zeros(len(eid), dtype=torch.bool)
    tied[len(eid) - len(before) + 1 :] = before[1:] == before[:-1]
    columns = {
        "eid": eid,
        "src": events.src,
        "dst": events.dst,
        "t": events.t,
        "num_pair": pair.long(),
        "num_reverse": reverse.long(),
        "num_src": src.long(),
        "num_dst": dst.long(),
        "pair_age": seconds,
        "tied": tied,
    }
    return {name: column.clone().numpy() for name, column in columns.items()}
