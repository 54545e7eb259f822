"""The plans of a trainer's batches, by its settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.keys import derive_key
from tgflow.model import TemporalModel
from tgflow.plan.counts import CountHistory
from tgflow.plan.negatives import NegativeSampler, NegativesOfBoth, NegativeSource, PairHistory
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay
from tgflow.train.config import ContinualConfig, TrainingConfig
from tgflow.train.microbatch import MicroBatchPlans


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
    fanouts: Sequence[int] | None = None,
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
        fanouts: Neighbors per hop, None: the model's.
    """
    own = {"fanouts": fanouts, "strategy": config.strategy, "counts": counts}
    return Plan.for_model(
        model,
        graph,
        batch_size=config.batch_size,
        seed=derive_key(seed, start),
        visibility=config.visibility,
        negatives=negatives,
        span=config.span,
        start=start,
        stop=stop,
        only=only,
        replay=replay,
        pairs=pairs,
        slices=config.slices,
        **{name: value for name, value in own.items() if value is not None},
    )


def micro_batch_plans(
    graph: TemporalGraph,
    model: TemporalModel,
    config: ContinualConfig,
    *,
    start: int = 0,
    replay_from: int = 0,
    counts: CountHistory | None = None,
    pairs: PairHistory | None = None,
) -> MicroBatchPlans:
    """Return the plans of the micro-batches of a stream: of what is predicted, and then learned.

    Args:
        graph: Graph whose log is planned.
        model: As `make_plan` takes it.
        config: Everything else.
        start: Log position of the first event of micro-batch 0.
        replay_from: No event before this log position is replayed.
        counts: As `make_plan` takes them.
        pairs: As `make_plan` takes them.
    """
    c = config
    replay = ExperienceReplay(c.replay_ratio, c.replay_horizon, c.replay_half_life, replay_from)
    seed = c.seed if c.data_seed is None else c.data_seed
    make = partial(make_plan, graph, model, c, seed=seed, start=start, counts=counts, pairs=pairs)
    ranked: NegativeSource = NegativeSampler(num=c.mrr_negatives)
    if c.hist_negatives:
        ranked = NegativesOfBoth(ranked, NegativeSampler("historical", c.hist_negatives))
    return MicroBatchPlans(
        make(ranked),
        make(NegativeSampler(), replay=replay if c.replay_ratio else None),
    )
