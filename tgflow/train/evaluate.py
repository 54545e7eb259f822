"""A pass over events that predicts and stores, but does not learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.metrics import LinkMetrics
from tgflow.train.finite import BatchPlace
from tgflow.train.learner import Learner
from tgflow.train.results import Results

INDUCTIVE = "inductive."
"""Prefix of metrics over the events that touch a new node."""


def evaluate(
    learner: Learner,
    batches: Iterable[Batch],
    touches_new: Tensor,
    batch_size: int,
    on_batch: Callable[[BatchPlace], None],
) -> dict[str, float]:
    """Predict each batch, then store it in memory; return metrics of all events and of new nodes'.

    Args:
        learner: Its parameters stay as they are; its memory moves on by the batches' events.
        batches: Of new events only, in order, on the learner's device.
        touches_new: Which events of the log touch a node unseen in training, bool `[N]`.
        batch_size: Events over which AP and AUC of new nodes' events are taken before averaging,
            as they are too few in a batch of all events.
        on_batch: Called when what a batch came to is known.

    Returns:
        As `LinkMetrics.result`, and the same with `inductive.` in front; plus `num_events`.
        Inductive metrics take the negatives that all events have, where DyGLib draws others, from
        the destinations of new nodes' events.
    """
    metrics, inductive = LinkMetrics(), LinkMetrics()
    kept: list[tuple[Tensor, Tensor]] = []
    for place, positive, negative in _scored(learner, batches):
        metrics.gather(positive, negative)
        new = touches_new.index_select(0, place.host.eid)
        kept.append((positive[new], negative[new]))
        on_batch(place)
    if kept:
        positive, negative = (torch.cat(column) for column in zip(*kept, strict=True))
        for start in range(0, len(positive), batch_size):
            rows = slice(start, start + batch_size)
            inductive.gather(positive[rows], negative[rows])
    out = metrics.result() | {"num_events": metrics.num_events}
    out |= {INDUCTIVE + name: value for name, value in inductive.result().items()}
    return out | {INDUCTIVE + "num_events": inductive.num_events}


def _scored(
    learner: Learner, batches: Iterable[Batch]
) -> Iterator[tuple[BatchPlace, Tensor, Tensor]]:
    """Predict and store each batch; yield its place and scores once they are on the host."""
    results: Results[BatchPlace] = learner.new_results()
    for batch in batches:
        scores = learner.predict(batch)
        learner.commit(batch, scores)
        values = {"positive": scores.positive, "negative": scores.negative}
        results.put(BatchPlace.of(batch), values)
        yield from _checked(learner, results)
    yield from _checked(learner, results, everything=True)


def _checked(
    learner: Learner, results: Results[BatchPlace], *, everything: bool = False
) -> Iterator[tuple[BatchPlace, Tensor, Tensor]]:
    for place, values in results.take(everything=everything):
        learner.check_late(place, values["positive"], values["negative"])
        yield place, values["positive"], values["negative"]
