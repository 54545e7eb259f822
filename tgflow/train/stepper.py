"""One model over micro-batches: each is predicted, then learned, then stored."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from tgflow.base.metrics import Figures, find_metrics, link_figures, measure, ranks
from tgflow.base.peers import Peers
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, StepBatch
from tgflow.graph.stream_state import SpreadState
from tgflow.nn.model import Scores, TemporalModel
from tgflow.plan.negatives import NegativeSource, chosen_events
from tgflow.plan.plan import Plan
from tgflow.train.config import FURTHER, ContinualConfig, TrainingConfig, parse_further
from tgflow.train.finite import BatchPlace, TrainingDiverged
from tgflow.train.observe import StepRecord
from tgflow.train.plans import negatives_learned
from tgflow.train.progress import Progress, RunningMean
from tgflow.train.results import Results
from tgflow.train.step import CapturedStep, StepResult, StepScores, TrainStep

if TYPE_CHECKING:
    from tgflow.ranks.control import RankControl
    from tgflow.train.concurrent_prediction import BesideLearning
    from tgflow.train.event_scores import EventScorer, EventScores
    from tgflow.train.tasks.labels import EventFigures, EventLabels
    from tgflow.train.tasks.late_learning import LateLearning

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a stream, shared by all models that learn it."""

    before: tuple[int, int, int]
    """The trainer's position, segment and index before it."""
    stop: int
    t: int
    lag_events: int
    lag_seconds: float
    arrived: float

    @property
    def start(self) -> int:
        return self.before[0]


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Ranks of events among all known destinations."""

    rank: Tensor
    """float64 `[B]`; NaN where an event was not ranked."""
    metrics: Mapping[str, float]
    """User-defined metrics, means over the ranked events."""


@dataclass(frozen=True, slots=True, eq=False)
class _Learned:
    """A stored micro-batch whose scores have not reached the host yet."""

    of: MicroBatch
    places: list[BatchPlace]
    """Values of the prediction, then of each update's batch."""
    num_fallbacks: int
    ended: float
    scores: EventScores | None
    ranked: Ranked | None
    first_meetings: Tensor | None
    """bool `[B]`: whether an event is the first of its pair; None: not known."""


OnScores: TypeAlias = Callable[[MicroBatch, Tensor, Tensor, Tensor, Tensor | None], None]
"""Called with a micro-batch, the scores of its events and negatives on the host, the ranks of
events among these, without historical negatives, and the logits of labels; if each event is ranked.
"""


class Stepper:
    """Takes one model through micro-batches, and makes their records.

    For each micro-batch: `predict`, then `learn` once for each update, then `store` and `finish`.
    """

    def __init__(
        self,
        model: TemporalModel,
        graph: TemporalGraph,
        config: ContinualConfig,
        *,
        peers: Peers | None = None,
        on_scores: OnScores | None = None,
        scorer: EventScorer | None = None,
        figures: EventFigures | None = None,
        labels: EventLabels | None = None,
        negatives: NegativeSource | None = None,
        **options: Any,
    ) -> None:
        self.model, self.config = model, config
        self.own_negatives = negatives
        """Negatives to learn from that are not those of the settings, or None."""
        self.learner = learner_of(
            model,
            config,
            Peers() if peers is None else peers,
            num_nodes=partial(attrgetter("num_nodes"), graph.log),
            **options,
        )
        self.num_updates = config.updates if self.learner.learns else 0
        """Updates of each micro-batch: none for a model without parameters."""
        self.keep_past()
        self.late: LateLearning | None = None
        """Learns labels that become known after their event."""
        if labels is not None:
            from tgflow.train.tasks.late_learning import LateLearning

            self.late = LateLearning.of(self.learner, labels, graph)
        self.progress = Progress(RunningMean(half_life=20.0))
        self.on_scores = on_scores
        self._scorer, self._figures = scorer, figures
        further = parse_further(config.mrr_further)
        self._further = [(FURTHER[kind], num) for kind, num in further.items()]
        """Metrics of further negatives, and how many there are."""
        self._metrics = find_metrics(config.metrics)
        self._results: Results[_Learned] = self.learner.new_results()
        self.records = deque[StepRecord]()
        """Records made by `collect`."""
        self._event_scores: EventScores | None = None
        self._ranked: Ranked | None = None
        self._first_meetings: Tensor | None = None
        self._on_host: dict[str, Tensor] = {}
        self._places: list[BatchPlace] = []
        self._num_fallbacks = 0
        self._scored: list[tuple[int, StepScores, Tensor | None]] = []
        """Update (0: predicted), scores, loss: read late, as ranks send scores with others."""
        self._replayed: CapturedStep | None = None
        """The same of a micro-batch that was one replay."""
        self._predicted: StepScores | None = None
        self._learned: StepResult | None = None
        self._beside = self._beside_learning()
        reads = scorer is not None or self.late is not None or config.mrr_negatives == "all"
        self._can_replay = not reads and self.num_updates <= 1
        """Whether nothing on the host reads scores of a micro-batch before it is stored."""
        self._waiting: Batch | None = None
        """Micro-batch to predict while it is learned."""

    def _beside_learning(self) -> BesideLearning | None:
        """Return the prediction on another thread, if it is asked for and gives the same bits."""
        learner = self.learner
        is_asked = learner.execution.beside and self.num_updates > 0 and self._scorer is None
        if not is_asked or self.config.slices > 1 or learner.device.type != "cpu":
            return None
        from tgflow.train.concurrent_prediction import BesideLearning

        if not BesideLearning.is_possible(self.model):
            return None
        return BesideLearning(self.model, learner.execution.precision)

    @property
    def negatives(self) -> str | None:
        """Kinds and numbers of the negatives that it learns from; None if it does not learn."""
        if self.own_negatives is not None and self.num_updates:
            return f"own:{self.own_negatives.num}"
        return negatives_learned(self.model, self.config) if self.num_updates else None

    def keep_past(self) -> None:
        """Make the model's state keep the past that replayed events read."""
        num_events = kept_past(self.config) if self.num_updates else 0
        if self.model.state is not None and num_events:
            self.model.state.keep_past(num_events)

    def resume_clocks(self) -> None:
        self.progress.resume(self.learner.compute_seconds)

    def step(self, batch: StepBatch, following: Iterator[StepBatch], plan: Plan) -> StepBatch:
        """Predict a micro-batch of `plan`, take its updates and store it; return the last batch.

        Args:
            batch: To predict.
            following: The batches of its updates come next.
            plan: Of `batch`.
        """
        if self._can_replay and isinstance(batch, Batch) and batch.lent is not None:
            rest = [*islice(following, self.num_updates)]
            learned = cast("Batch", rest[0]) if rest else None
            self._replayed = self.learner.step(batch, learned)
            if self._replayed is not None:
                self._begin(batch, plan)
                self._places += map(BatchPlace.of, rest)
                return batch if learned is None else learned
            following = iter(rest)
        self.predict(batch, plan)
        for _ in range(self.num_updates):
            batch = next(following)
            self.learn(batch)
        self.store(batch)
        return batch

    def _begin(self, batch: StepBatch, plan: Plan) -> None:
        self._places, self._num_fallbacks = [BatchPlace.of(batch)], batch.num_fallbacks
        self._learned = self._ranked = self._first_meetings = None
        begin, end = batch.host.begin, batch.host.end
        if self.learner.leads:
            self._first_meetings = plan.draws.pairs_at(begin).first_meetings(begin, end)

    def predict(self, batch: StepBatch, plan: Plan) -> None:
        """Predict a micro-batch of `plan`, and rank its events among all destinations if asked."""
        self._begin(batch, plan)
        ranks_all = self.config.mrr_negatives == "all" and self.learner.leads
        if self._beside is not None:
            assert isinstance(batch, Batch)
            self._waiting = batch
            self._ranked = self._rank(plan, batch) if ranks_all else None
            return
        self._predicted = scores = self._scores_of(batch)
        self._keep(batch, scores)
        self._ranked = self._rank(plan, batch) if ranks_all else None
        self._scored = [(0, scores, None)]
        if self._scorer is not None:
            rank_of_all = None if self._ranked is None else self._ranked.rank
            self._event_scores = self._scorer.score(batch.host, self._on_host, rank_of_all)

    def _rank(self, plan: Plan, batch: StepBatch) -> Ranked:
        """Rank the chosen events of a micro-batch among all destinations, part by part.

        Synchronizes.
        """
        begin, end = batch.host.begin, batch.host.end
        rank = torch.full((batch.num_new,), torch.nan, dtype=torch.float64)
        sums: dict[str, float] = {}
        rows = chosen_events(begin, end, self.config.mrr_every).nonzero().squeeze(1)
        for part in plan.parts_of(batch.index, rows, self.config.max_pairs):
            made = plan.batch(batch.epoch, batch.index, part).to(self.learner.device)
            values = self.learner.predict(made).named()
            values = {name: values[name].cpu() for name in ("positive", "negative")}
            self.learner.check_late(BatchPlace.of(made), values)
            positive, negative = values["positive"], values["negative"]
            if made.negative_mask is not None:
                negative = negative.where(made.negative_mask, -torch.inf)
            rank[part.rows] = ranks(positive, negative)
            for name, value in measure(self._metrics, positive, negative).items():
                sums[name] = sums.get(name, 0.0) + value * len(positive)
        return Ranked(rank, {name: total / len(rows) for name, total in sums.items()})

    def _scores_of(self, batch: StepBatch) -> StepScores:
        """Return the scores of a micro-batch: on the host and finite, if they are requested."""
        scores = self.learner.predict(batch)
        if self._scorer is not None:
            self.learner.flush(batch)
            self._on_host = {name: x.cpu() for name, x in scores.named().items()}
            if self._on_host:
                self.learner.check_late(self._places[0], self._on_host)
        return scores

    def learn(self, batch: StepBatch) -> None:
        """Take one update on the micro-batch and the events replayed with it."""
        update = len(self._places)
        self._places.append(BatchPlace.of(batch))
        if self.late is not None:
            assert isinstance(batch, Batch)
            batch = self.late.attach(batch)
        learn = partial(self.learner.learn, stores=update == self.num_updates)
        if self._beside is not None and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            assert isinstance(batch, Batch)
            self.learner.check_batch(waiting)
            with self._beside.predicting(waiting, batch) as predicting:
                self.learner.before_update = predicting.result
                try:
                    result = learn(batch)
                finally:  # its error comes first, as if it had been predicted before
                    self.learner.before_update = lambda: None
                    self._predicted = predicted = predicting.result()
                self._keep(waiting, predicted)
            self._learned = result
            self._scored = [(0, predicted, None), (update, result.scores, result.loss)]
            return
        self._learned = learned = learn(batch)
        self._scored.append((update, learned.scores, learned.loss))

    def _keep(self, batch: StepBatch, scores: StepScores) -> None:
        if self.late is not None and isinstance(scores, Scores) and scores.label_inputs is not None:
            self.late.put(batch, scores.label_inputs)

    def store(self, batch: StepBatch) -> None:
        scores = self._predicted if self._learned is None else self._learned.scores
        self.learner.commit(batch, scores)
        if self.late is not None:
            self.late.commit()

    def finish(self, of: MicroBatch) -> None:
        """Queue the micro-batch for its record."""
        if self._scorer is not None:
            self._scorer.calibrate()
        ended = time.perf_counter()
        step = _Learned(
            of,
            self._places,
            self._num_fallbacks,
            ended,
            self._event_scores,
            self._ranked,
            self._first_meetings,
        )
        replayed = self._replayed
        if replayed is not None:
            self._results.put(step, replayed.values, replayed.flat)
        else:
            values: dict[tuple[int, str], Tensor] = {}
            for update, scores, loss in self._scored:
                found = scores.named() | ({} if loss is None else {"loss": loss})
                values |= {(update, name): x for name, x in found.items()}
            self._results.put(step, values)
        self._scored, self._predicted, self._learned, self._replayed = [], None, None, None
        self.learner.has_changed = False

    @property
    def num_pending(self) -> int:
        """Micro-batches that are stored but whose records were not taken."""
        return len(self._results) + len(self.records)

    def collect(self, *, everything: bool) -> None:
        for step, found, is_finite in self._results.take(everything=everything):
            values: list[dict[str, Tensor]] = [{} for _ in step.places]
            for key in found:
                values[key[0]][key[1]] = found[key]
            try:
                for place, each in () if is_finite else zip(step.places, values, strict=True):
                    if each:
                        self.learner.check_late(place, each)
            except TrainingDiverged as error:
                self._results.clear()
                error.before = step.of.before
                raise
            self.records += (self._record(step, values[0], values[-1]),)

    def _measured(
        self, step: _Learned, values: Mapping[str, Tensor], learned: Mapping[str, Tensor]
    ) -> tuple[Figures, Figures, float | None, float | None]:
        """Return the figures of all events of the prediction, those of ranked ones, and the sum of
        their squared reciprocal ranks, none during warm-up; and the AP of replayed events.
        """
        if "positive" not in values:
            return {}, {}, None, None
        positive, negative, host = values["positive"], values["negative"], step.places[0].host
        update = step.places[-1]
        of_events, of_ranked, of_some, squares, replay_ap = link_figures(
            positive,
            negative,
            (learned["positive"], learned["negative"], update.num_new, update.host.negative_mask)
            if "positive" in learned and "loss" in learned
            else None,
            mask=host.negative_mask,
            ranks=None if step.ranked is None else step.ranked.rank,
            is_first=step.first_meetings,
            begin=host.begin,
            every=self.config.mrr_every,
            further=self._further,
        )
        if step.of.before[0] < self.config.warmup:
            return {}, {}, None, replay_ap
        if self._figures is not None:
            num = float(step.of.stop - step.of.before[0])
            added = self._figures.add(host, positive, values.get("classes"))
            of_events |= {name: (value, num) for name, value in added.items()}
        if self._metrics or self.on_scores is not None:
            of_ranked |= self._own_figures(step, values)
        return of_events, of_ranked | of_some, squares, replay_ap

    def _own_figures(self, step: _Learned, values: Mapping[str, Tensor]) -> Figures:
        """Return the figures by user-defined metrics, and call `on_scores`."""
        mask, host, ranked = step.places[0].host.negative_mask, step.places[0].host, step.ranked
        positive, negative = values["positive"], values["negative"]
        is_ranked = None if ranked is None else ~ranked.rank.isnan()
        if mask is not None:
            negative = negative.where(mask, -torch.inf)
            if is_ranked is None:
                is_ranked = chosen_events(host.begin, host.end, self.config.mrr_every)
        if is_ranked is not None:
            positive, negative = positive[is_ranked], negative[is_ranked]
        negative = negative[:, : negative.shape[1] - sum(num for _, num in self._further)]
        if self.on_scores is not None:
            rank = ranks(positive, negative) if ranked is None else ranked.rank[is_ranked]
            self.on_scores(step.of, positive, negative, rank, values.get("classes"))
        own = measure(self._metrics, positive, negative) if ranked is None else ranked.metrics
        return {name: (value, float(len(positive))) for name, value in own.items()}

    def _record(
        self, step: _Learned, predicted: Mapping[str, Tensor], learned: Mapping[str, Tensor]
    ) -> StepRecord:
        """Return the record of the prediction, and of the last update, if there was one."""
        progress, of = self.progress, step.of
        start = of.before[0]
        of_events, of_ranked, squares, replay_ap = self._measured(step, predicted, learned)
        loss, num = None, float(of.stop - start)
        of_learned: Figures = {}
        if "loss" in learned:
            loss = learned["loss"].item()
            of_learned["loss"] = loss, num
            if replay_ap is not None:
                of_learned["replay_ap"] = replay_ap, num
        metrics = dict[str, float]()
        for figures in (of_events, of_ranked):
            for name in figures:
                metrics[name] = figures[name][0]
        running = progress.add(
            start,
            of.stop,
            of_events | of_learned | of_ranked,
            squares=squares,
            num_fallbacks=step.num_fallbacks,
            ended=step.ended,
            compute_seconds=self.learner.clock.seconds,
        )
        recent, so_far = ({}, {}) if self._figures is None else self._figures.aps()
        return StepRecord(
            index=step.places[-1].index,
            start=start,
            stop=of.stop,
            t=of.t,
            loss=loss,
            metrics=metrics,
            running=running | recent,
            prequential=progress.timeline.mean() | so_far,
            forgetting=progress.forgetting(),
            num_fallbacks=step.num_fallbacks,
            lag_events=of.lag_events,
            lag_seconds=of.lag_seconds,
            freshness_seconds=time.perf_counter() - of.arrived,
            seconds=progress.step_seconds,
            events_per_second=progress.events_per_second(),
            overhead_share=progress.overhead_share(),
            scores=step.scores,
        )

    def result(self, test_start: int) -> dict[str, Any]:
        """Return the metrics so far; `test.*` are of the events from `test_start` on."""
        learned = self.negatives
        out: dict[str, Any] = {} if learned is None else {"negatives": learned}
        for name, since in (("prequential", None), ("test", test_start)):
            means = self.progress.timeline.mean(since)
            out |= {f"{name}.{metric}": value for metric, value in means.items()}
        return out | self.progress.summary()


def learner_of(
    model: TemporalModel,
    config: TrainingConfig,
    peers: Peers,
    control: RankControl | None = None,
    **options: Any,
) -> TrainStep:
    """Return the steps of a model; see `TrainStep`.

    Args:
        model: Model to train.
        config: Settings.
        peers: The ranks that compute the slices of its batches.
        control: Control channel to them, if there are several.
        options: Further arguments of `TrainStep`.
    """
    if config.slices == 1 and peers.world == 1 and not isinstance(model.state, SpreadState):
        return TrainStep(model, config, **options)
    from tgflow.train.sliced_step import SlicedStep

    return SlicedStep(model, config, peers=peers, control=control, **options)


def replay_past(config: ContinualConfig) -> int:
    """Return how many events back training with `config` reads a model's state."""
    return config.replay_horizon if config.replay_ratio > 0 and config.updates > 0 else 0


def kept_past(config: ContinualConfig) -> int:
    """Return for how many events a model's state must keep its past.

    The micro-batch of the oldest replayed event may have overwritten the rows that event reads, so
    it is included.
    """
    past = replay_past(config)
    return past + config.batch_size if past else 0
