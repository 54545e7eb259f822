"""Callbacks of a trainer, and their records: one per batch, epoch or step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from tgflow.base.describe import described

if TYPE_CHECKING:
    from torch import Tensor

    from tgflow.train.event_scores import EventScores

Stage = Literal["train", "val", "test"]


@described
@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Record of a completed batch of an offline pass."""

    stage: Stage
    """The part of the events that the pass covers."""
    epoch: int
    """Epoch, from 0."""
    index: int
    """Index of the batch in its pass, from 0."""
    num_batches: int
    """Number of batches in the pass."""
    num_events: int
    """Number of events in the batch."""
    loss: float | None
    """Training loss; None in evaluation."""


@described
@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Record of a trained and validated epoch."""

    epoch: int
    """Epoch, from 0."""
    loss: float
    """Mean over the epoch's batches."""
    val: dict[str, float]
    """Validation metrics, as `LinkMetrics.result` names them."""
    is_best: bool
    """Whether it is the best epoch so far."""
    seconds: float
    """Training time, without validation."""
    events_per_second: float
    """Training throughput."""
    overhead_share: float
    """Share of `seconds` outside forward, backward and optimizer."""

    def to_json(self) -> dict[str, Any]:
        return _flat(asdict(self))


@described
@dataclass(slots=True)
class StepRecord:
    """Record of a micro-batch that was predicted, learned and stored."""

    index: int
    """Micro-batches before this one, since the start or since the last partial one."""
    start: int
    """Log position of its first event."""
    stop: int
    """Log position after its last event."""
    t: int
    """Time of its last event in ticks."""
    loss: float | None
    """Loss of the last update, before its optimizer step; None if nothing was learned."""
    metrics: dict[str, float]
    """Metrics of this micro-batch before it was learned: `ap`, `auc`, `mrr`, `hits@k`."""
    running: dict[str, float]
    """The same, `loss` and `replay_ap`, weighted exponentially toward the latest micro-batches."""
    prequential: dict[str, float]
    """The same over all events so far: AP and AUC as means over micro-batches, MRR over events."""
    forgetting: float | None
    """Drop of the running AP on replayed events below its highest; None without replay."""
    num_fallbacks: int
    """Negatives of the prediction that had no eligible candidate (see `NegativeSampler`)."""
    lag_events: int
    """Events received but not yet stored."""
    lag_seconds: float
    """Stream time between the last event stored and the last one received."""
    freshness_seconds: float
    """Wall time from the arrival of the micro-batch's last event until it was stored."""
    seconds: float
    """Wall time of this step, waiting for its events included."""
    events_per_second: float
    """Mean over the whole run so far."""
    overhead_share: float
    """Share of the run's wall time outside forward, backward and optimizer, waiting included."""
    scores: EventScores | None = None
    """Scores of each event before it was learned; None unless the trainer was made with
    `scores=True`, and on ranks other than 0."""
    further: dict[str, Any] = field(default_factory=dict)
    """Further figures: a run adds elapsed time, memory, progress and hit rates of caches."""
    _flat: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def eid(self) -> Tensor:
        """Log positions of its events, int64 `[B]`."""
        import torch

        return torch.arange(self.start, self.stop)

    def to_json(self) -> dict[str, Any]:
        """Return a flat, JSON-serializable dict, such as {"start": 0, "running.ap": 0.9, ...}.

        Includes `further`, and omits the per-event `scores`.
        """
        if self._flat is None:  # several callbacks read it
            self._flat = _flat(dict(zip(_STEP_FIELDS, _STEP_VALUES(self), strict=True)))
        return self._flat | self.further


_STEP_FIELDS = [
    each.name for each in fields(StepRecord) if each.name not in ("scores", "further", "_flat")
]
_STEP_VALUES = attrgetter(*_STEP_FIELDS)


@described
class Callback:
    """Base class for callbacks; override the methods that are needed. An exception stops the run.

    Example:
        >>> class Printed(tg.Callback):
        ...     def on_step(self, record):
        ...         print(record.stop, "events learned")
        >>> _ = tg.ContinualTrainer(tg.TGN(), tg.TemporalGraph()).run([many], Printed())
        200 events learned
        400 events learned
    """

    def on_batch(self, record: BatchRecord) -> None:
        """Called after a batch of `OfflineTrainer`."""

    def on_test_scores(
        self,
        negatives: str,
        eid: Tensor,
        positive: Tensor,
        negative: Tensor,
        classes: Tensor | None,
    ) -> None:
        """Called with the scores of a test batch of `OfflineTrainer`, on the host.

        Args:
            negatives: Kind of negatives.
            eid: Log positions, int64 `[B]`.
            positive: float `[B]`.
            negative: float `[B, m]`.
            classes: Logits of labels, float `[B, C]`; None unless a task predicts them.
        """

    def on_epoch(self, record: EpochRecord) -> None:
        """Called after an epoch of `OfflineTrainer`."""

    def on_step(self, record: StepRecord) -> None:
        """Called after a micro-batch of `ContinualTrainer`."""


class Callbacks:
    """Calls several callbacks one after the other."""

    def __init__(self, observer: Callback | Sequence[Callback] | None = None) -> None:
        several = observer if isinstance(observer, Sequence) else [observer]
        self._all = [each for each in several if each is not None]

    def notify(self, method: str, *values: object) -> None:
        for each in self._all:
            getattr(each, method)(*values)

    @contextmanager
    def also(self, other: AbstractContextManager[Callback]) -> Iterator[None]:
        with other as callback:
            self._all.append(callback)
            try:
                yield
            finally:
                self._all.remove(callback)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in values:
        value = values[name]
        if type(value) is dict:
            for key in value:
                out[f"{name}.{key}"] = value[key]
        else:
            out[name] = value
    return out
