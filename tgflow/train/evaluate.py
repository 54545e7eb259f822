"""A pass over events that predicts and stores, but does not learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import AnyBatch, HostEvents
from tgflow.metrics import LinkMetrics, Metrics
from tgflow.plan.loader import BatchPart
from tgflow.train.finite import BatchPlace
from tgflow.train.reducer import score_values
from tgflow.train.results import Results
from tgflow.train.step import TrainStep

INDUCTIVE = "inductive."
"""Prefix of metrics over the events that touch a new node."""
_COLUMNS = ("eid", "src", "dst", "t")


class Scored(NamedTuple):
    """A batch, and what was predicted of it, on the host."""

    place: BatchPlace
    positive: Tensor
    negative: Tensor
    """Padding -inf."""
    classes: Tensor | None = None
    """The logits of the events' labels, if a task predicts them."""


def evaluate(
    scored: Iterable[Scored],
    touches_new: Tensor,
    batch_size: int,
    on_batch: Callable[[Scored], None],
    own: Metrics | None = None,
) -> dict[str, float]:
    """Return metrics of all events and of those of new nodes."""
    metrics, inductive = LinkMetrics(own), LinkMetrics(own)
    kept: list[tuple[Tensor, Tensor]] = []
    for batch in scored:
        positive, negative = batch.positive, batch.negative
        metrics.add(positive, negative)
        new = touches_new.index_select(0, batch.place.host.eid)
        kept.append((positive[new], negative[new]))
        on_batch(batch)
    if kept:
        positive, negative = (torch.cat(column) for column in zip(*kept, strict=True))
        for start in range(0, len(positive), batch_size):
            rows = slice(start, start + batch_size)
            inductive.add(positive[rows], negative[rows])
    out = metrics.result() | {"num_events": metrics.num_events}
    out |= {INDUCTIVE + name: value for name, value in inductive.result().items()}
    return out | {INDUCTIVE + "num_events": inductive.num_events}


def scores_of(
    learner: TrainStep, batches: Iterable[AnyBatch], parts: Iterable[BatchPart] | None = None
) -> Iterator[Scored]:
    """Predict each batch, then store it in memory; yield its scores once they are on the host.

    Nothing is yielded on ranks that the scores do not come to.
    """
    results: Results[tuple[BatchPlace, bool]] = learner.new_results()
    whole: list[Scored] = []

    def known(*, everything: bool = False) -> Iterator[Scored]:
        """Yield the batches all of whose parts have come to the host."""
        for (place, is_last), values in results.take(everything=everything):
            positive, negative = values["positive"], values["negative"]
            classes, mask = values.get("classes"), place.host.negative_mask
            learner.check_late(place, positive, negative, classes=classes)
            negative = negative if mask is None else negative.where(mask, -torch.inf)
            whole.append(Scored(place, positive, negative, classes))
            if is_last:
                yield _joined(whole)
                whole.clear()

    for batch, part in zip(batches, repeat(None) if parts is None else parts, strict=False):
        if part is not None and part.is_stored:
            learner.commit(batch, None)
            continue
        scores = learner.predict(batch)
        if part is None:
            learner.commit(batch, scores)
        values = score_values(scores)
        if values:
            results.put((BatchPlace.of(batch), part is None or part.is_last), values)
        yield from known()
    yield from known(everything=True)


def _joined(parts: list[Scored]) -> Scored:
    """Return the scores of all parts of a batch as those of one."""
    if len(parts) == 1:
        return parts[0]
    places, positive, negative, _ = zip(*parts, strict=True)
    hosts = [place.host for place in places]
    eid, src, dst, t = (torch.cat([getattr(host, name) for host in hosts]) for name in _COLUMNS)
    host = HostEvents(eid, src, dst, t, hosts[0].begin, hosts[0].end)
    place = replace(places[0], num_new=len(host.eid), host=host)
    return Scored(place, torch.cat(positive), torch.cat(negative))


def prefix_metrics(part: str, metrics: dict[str, float]) -> dict[str, float]:
    """Put the part in front of each metric's name: `test.ap`, `inductive.test.ap`."""
    return {
        f"{INDUCTIVE}{part}.{name.removeprefix(INDUCTIVE)}"
        if name.startswith(INDUCTIVE)
        else f"{part}.{name}": value
        for name, value in metrics.items()
    }
