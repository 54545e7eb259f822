"""What every trainer is told, and how a plan follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.plan.keys import key
from tgflow.plan.lookahead import Lookahead
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan, Visibility
from tgflow.plan.replay import ExperienceReplay
from tgflow.sampling import Strategy


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of every trainer."""

    seed: int = 0
    """Seeds every draw of the training; not the model's first parameters."""
    batch_size: int = 200
    """Events per batch."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    weight_decay: float = 0.0
    """Adam's decay of the parameters."""
    grad_clip: float | None = None
    """Largest norm of the gradients, or None."""
    mrr_negatives: int = 20
    """Negatives per event where MRR is measured; AP and AUC use the first of them."""
    visibility: Visibility = "event"
    """What a query sees: all that is earlier than its event, or what its batch's start knew."""
    strategy: Strategy | None = None
    """How neighbors are sampled; None as the model's paper does."""
    span: int | None = None
    """Ticks: the width of strategy `window`, the half-life of `decayed`."""
    seconds_per_tick: float = 1.0
    num_threads: int = 1
    """Threads that prepare batches; 0 prepares them in line."""
    lookahead: Lookahead = "auto"
    """Batches to prepare ahead; see `Loader`."""

    def __post_init__(self) -> None:
        if self.lookahead != "auto" and self.lookahead < 1:
            raise ValueError(f'lookahead must be "auto" or at least 1, got {self.lookahead!r}')


def make_plan(
    graph: TemporalGraph,
    model: TemporalModel,
    config: TrainingConfig,
    negatives: NegativeSampler,
    *,
    seed: int,
    start: int = 0,
    stop: int | None = None,
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
        replay: Past events to add to each batch.
    """
    return Plan(
        graph,
        seed=key(seed, start),
        batch_size=config.batch_size,
        fanouts=model.fanouts,
        strategy=config.strategy or model.strategy,
        span=config.span,
        visibility=config.visibility,
        negatives=negatives,
        seconds_per_tick=config.seconds_per_tick,
        start=start,
        stop=stop,
        replay=replay,
        with_memory=model.state is not None,
    )
