"""The plan of a trainer's batches, by its settings."""

from __future__ import annotations

from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.keys import derive_key
from tgflow.model import TemporalModel
from tgflow.plan.negatives import NegativeSource
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
) -> Plan:
    """Return the plan of the events of `graph` at `[start, stop)` for a model and its settings.

    Args:
        graph: Graph whose log is planned.
        model: Says how many neighbors, and how they are sampled if `config` does not.
        config: Everything else.
        negatives: How negatives are drawn.
        seed: Seeds every draw, together with `start`.
        start: Log position of the first event.
        stop: Log position after the last event; None grows with the log.
        only: Log positions of the only events, instead of `start` and `stop`.
        replay: Past events to add to each batch.
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
    )
