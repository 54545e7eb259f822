"""The plan of a trainer's batches, by its settings."""

from __future__ import annotations

from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.keys import derive_key
from tgflow.model import TemporalModel
from tgflow.plan.counts import CountHistory
from tgflow.plan.negatives import NegativeSource, PairHistory
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay
from tgflow.train.config import TrainingConfig


def make_plan(
    graph: TemporalGraph,
    model: TemporalModel,
    config: TrainingConfig,
    negatives: NegativeSource,
    *,
    seed: int,
    start: int = 0,
    stop: int | None = None,
    only: Tensor | None = None,
    replay: ExperienceReplay | None = None,
    counts: CountHistory | None = None,
    pairs: PairHistory | None = None,
) -> Plan:
    """Return the plan of the events of `graph` at `[start, stop)` for a model and its settings.

    Args:
        graph: Graph whose log is planned.
        model: Says how many neighbors, how they are sampled if `config` does not, and what is
            counted of the past.
        config: Everything else.
        negatives: How negatives are drawn.
        seed: Seeds every draw, together with `start`.
        start: Log position of the first event.
        stop: Log position after the last event; None grows with the log.
        only: Log positions of the only events, instead of `start` and `stop`.
        replay: Past events to add to each batch.
        counts: Of the model's counts, to share them with other plans of the graph.
        pairs: Of the graph's pairs, to share them likewise.
    """
    return Plan(
        graph,
        seed=derive_key(seed, start),
        batch_size=config.batch_size,
        fanouts=model.fanouts,
        strategy=config.strategy or model.strategy,
        span=config.span,
        visibility=config.visibility,
        negatives=negatives,
        start=start,
        stop=stop,
        only=only,
        replay=replay,
        with_memory=model.state is not None,
        counts=model.counts if counts is None else counts,
        pairs=pairs,
        slices=config.slices,
    )
