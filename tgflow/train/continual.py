"""Continual learning: each micro-batch of a stream is predicted, then learned, then stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import torch

from tgflow.batch import Batch
from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.parts import SectionReader, SectionWriter
from tgflow.cuda.clock import clock_of
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.plan.counts import CountHistory
from tgflow.plan.inputs import check_unplanned
from tgflow.plan.loader import Loader
from tgflow.plan.lookahead import PREFETCH_BATCHES
from tgflow.plan.negative_sources import NegativesOfBoth
from tgflow.plan.negatives import NegativeSampler, NegativeSource
from tgflow.plan.replay import ExperienceReplay
from tgflow.tables.protocols import Table
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.finite import BatchPlace, TrainingDiverged
from tgflow.train.learner import Learner
from tgflow.train.microbatch import MicroBatcher, MicroBatchPlans
from tgflow.train.observe import Callback, StepRecord
from tgflow.train.pending_steps import DivergedStep, LearnedStep, PendingSteps, step_values
from tgflow.train.plans import make_plan
from tgflow.train.progress import Progress
from tgflow.train.protocols import continual_line
from tgflow.train.state import graph_of, load_learner, save_state

Answer = TypeVar("Answer")

MAX_LOST = 20
"""Micro-batches in a row that may be left out as not finite; then the parameters are lost."""


class ContinualTrainer:
    """Learns from a stream as it comes, and measures how well each event was predicted before.

    The graph may already hold events: they are history, neither predicted nor learned.

    Args:
        model: Model to train, memory included.
        graph: Grows by the stream's events; append to it nowhere else.
        config: Settings.
        execution: How a GPU is used, if the model is on one.

    Raises:
        ValueError: If features of the graph are cached with `policy="belady"`, which needs to know
            what comes next. Rows of a stream are written through to their table as they come, and
            `policy="lru"` follows recency.
    """

    def __init__(
        self,
        model: TemporalModel,
        graph: TemporalGraph,
        config: ContinualConfig | None = None,
        *,
        execution: ExecutionConfig | None = None,
    ) -> None:
        self.config = c = ContinualConfig() if config is None else config
        self._execution = ExecutionConfig() if execution is None else execution
        check_unplanned(graph)
        self.model = model
        self._keep_past()
        self.graph = graph
        self.position = graph.num_events
        """Events predicted, learned and stored (or history); the graph's others wait their turn."""
        self.progress = Progress.new(c.half_life)
        self._learner = Learner(
            model,
            seed=c.seed,
            learning_rate=c.learning_rate,
            weight_decay=c.weight_decay,
            grad_clip=c.grad_clip,
            loss=c.loss,
            execution=self._execution,
            num_nodes=lambda: graph.num_nodes,
            checks_at_once=c.on_nan == "skip",
        )
        self._counts = CountHistory(graph, model.counts)
        self._preparation = clock_of(self._learner.device)
        self._steps = PendingSteps(self._learner, self._preparation, c.hist_negatives, c.warmup)
        self._catches_up = False
        self._replay_from = 0
        """No event before this log position is replayed: the model's state has forgotten it."""
        self._segment_start = self.position
        self._index = 0
        self._lost = 0

    def run(self, stream: Iterable[EventBatch], observer: Callback | None = None) -> dict[str, Any]:
        """Learn from all of `stream` and return `result()`.

        Args:
            stream: Batches of any size, in order; read as needed, from another thread.
            observer: Hears of each step.

        Raises:
            TrainingDiverged: If a loss or score is not finite.
            BatchError: If a batch cannot be prepared.
            ValueError: If the stream has another time unit than the graph; and what either raises,
                such as for a time that decreases.
        """
        for record in self.steps(stream):
            if observer is not None:
                observer.on_step(record)
        return self.result()

    def steps(self, stream: Iterable[EventBatch]) -> Iterator[StepRecord]:
        """Do what `run` does, step by step; between steps a checkpoint may be taken.

        On a GPU records come up to 16 micro-batches behind, and all of them before this returns.
        Left early, up to `lookahead` micro-batches of the stream wait in the graph: they come first
        when this is called again.
        """
        self.graph.check_time_unit(stream)
        c = self.config
        feeder = MicroBatcher(self.graph, self._segment_start, self._index, c.batch_size, c.updates)
        ahead = PREFETCH_BATCHES if c.lookahead == "auto" else c.lookahead
        loader = Loader.of_tasks(
            self._plans(),
            feeder.tasks(stream),
            num_threads=c.num_threads,
            lookahead=ahead * (1 + c.updates),
            device=self._learner.device,
            captures=self._execution.capture,
            clock=self._preparation,
        )
        self.progress.resume(self._learner.compute_seconds, self._preparation.seconds)
        with closing(iter(loader)) as batches:  # type: ignore[type-var]
            try:
                for batch in batches:
                    self._step(batch, batches, feeder)
                    yield from self._known()
            except Exception:
                yield from self.drain()  # what was learned before
                raise
        yield from self.drain()

    def _keep_past(self) -> None:
        """Let the model's state keep what replayed events read of it."""
        num_events = _kept_past(self.config)
        if self.model.state is not None and num_events:
            self.model.state.keep_past(num_events)

    def _plans(self) -> MicroBatchPlans:
        c, start = self.config, self._segment_start
        replay = ExperienceReplay(
            c.replay_ratio, c.replay_horizon, c.replay_half_life, self._replay_from
        )
        make = partial(
            make_plan, self.graph, self.model, c, seed=c.seed, start=start, counts=self._counts
        )
        ranked: NegativeSource = NegativeSampler(num=c.mrr_negatives)
        if c.hist_negatives:
            ranked = NegativesOfBoth(ranked, NegativeSampler("historical", c.hist_negatives))
        return MicroBatchPlans(
            make(ranked),
            make(NegativeSampler(), replay=replay if c.replay_ratio else None),
        )

    def _step(self, batch: Batch, following: Iterator[Batch], feeder: MicroBatcher) -> None:
        """Predict, then learn, then store one micro-batch; `following` has its updates' batches."""
        before = (self.position, self._segment_start, self._index)
        places, num_fallbacks = [BatchPlace.of(batch)], batch.num_fallbacks
        scores = self._tried(self._learner.predict, batch)
        values = {} if scores is None else step_values("", scores)
        learned = None
        for update in range(1, self.config.updates + 1):
            batch = next(following)
            places.append(BatchPlace.of(batch))
            if scores is not None:
                learned = self._tried(self._learner.learn, batch)
                if learned is not None:
                    values |= step_values(f"{update}.", learned.scores, learned.loss)
        if scores is not None:
            if self.config.updates:
                scores = None if learned is None else learned.scores
            self._learner.commit(batch, scores)
            self._lost = 0
        self.position += batch.num_new
        if batch.num_new < self.config.batch_size:  # the stream has ended in a partial one
            self._segment_start, self._index = self.position, 0
        else:
            self._index += 1
        arrived = feeder.arrivals.popleft()
        self._steps.put(self._step_of(before, places, num_fallbacks, arrived), values)
        self._learner.has_changed = False

    def _step_of(
        self,
        before: tuple[int, int, int],
        places: list[BatchPlace],
        num_fallbacks: int,
        arrived: float,
    ) -> LearnedStep:
        """Return what is known of the micro-batch that was just stored."""
        t, t_last = int(places[-1].host.t[places[-1].num_new - 1]), self.graph.log.t_last
        assert t_last is not None
        return LearnedStep(
            places=places,
            before=before,
            stop=self.position,
            t=t,
            num_fallbacks=num_fallbacks,
            lag_events=self.graph.num_events - self.position,
            lag_seconds=(t_last - t) * self.graph.seconds_per_tick,
            arrived=arrived,
            ended=time.perf_counter(),
        )

    def _tried(self, act: Callable[[Batch], Answer], batch: Batch) -> Answer | None:
        """Return what `act` does with `batch`; None if that is not finite, and to be left out."""
        try:
            return act(batch)
        except TrainingDiverged:
            self._lost += 1
            if self.config.on_nan == "stop" or self._lost > MAX_LOST:
                raise
            self.progress.num_skipped += 1
            return None

    @property
    def is_whole(self) -> bool:
        """Whether no micro-batch was learned in part, as by `steps` that failed within one.

        What `checkpoint` returns is a state that an undisturbed training has been in only then.
        """
        return not self._learner.has_changed

    @property
    def device(self) -> torch.device:
        """Where the model is, and batches come to."""
        return self._learner.device

    @property
    def num_pending(self) -> int:
        """Micro-batches that were learned and whose records were not yielded yet."""
        return len(self._steps)

    def catch_up(self) -> None:
        """Have `steps` yield what is pending before it goes on; waits for the device there."""
        self._catches_up = True

    def drain(self) -> Iterator[StepRecord]:
        """Yield the records of micro-batches that `steps` has learned and did not yield.

        There are some on a GPU only, after `steps` was left early. Waits for the device.
        """
        self._collect(everything=True)
        yield from self._steps.records()

    def _known(self) -> Iterator[StepRecord]:
        """Yield the records of micro-batches whose scores have come to the host."""
        everything, self._catches_up = self._catches_up, False
        self._collect(everything=everything)
        yield from self._steps.records()

    def _collect(self, *, everything: bool) -> None:
        """Take in what has come to the host; go back to where something was not finite.

        Raises:
            TrainingDiverged: If something was, and nobody has waited for it.
        """
        try:
            self._steps.collect(self.progress, everything=everything)
        except DivergedStep as found:
            self.position, self._segment_start, self._index = found.step.before
            raise found.error from None

    def result(self) -> dict[str, Any]:
        """Return the run's metrics so far, flat and fit for JSON; undefined ones are left out.

        `prequential.*` are over all events, `test.*` over the last `test_share` of them, from
        `test.start_event` on; each event was predicted before it was learned. AP and AUC are means
        over micro-batches, MRR and Hits@k over events. Times add up over resumed runs.
        """
        c, progress = self.config, self.progress
        test_start = progress.timeline.tail_start(c.test_share)
        tied = self.graph.log.tied_share(self.position)
        out: dict[str, Any] = {
            "protocol": c.protocol or "prequential",
            "protocol_line": continual_line(c, tied),
            "tied_share": tied,
            "visibility": c.visibility,
            "seed": c.seed,
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
            **self._counts.figures(self.position),
            "num_events": progress.num_events,
            "num_nodes": self.graph.num_nodes,
            "test.start_event": test_start,
        }
        for name, since in (("prequential", None), ("test", test_start)):
            means = progress.timeline.mean(since)
            out |= {f"{name}.{metric}": value for metric, value in means.items()}
        return out | progress.summary()

    def checkpoint(self) -> Checkpoint:
        """Return all that `from_checkpoint` needs to continue with the same bits.

        It holds the events up to `position`: resume the stream from there. Save parts of your own
        to it, such as `Ids`, before you write it. It is a copy as of now: train on while another
        thread writes it. Nothing is drawn and no bit of the trainer changes.
        """
        checkpoint = Checkpoint({})
        self.save(checkpoint)
        return checkpoint

    def save(self, writer: SectionWriter) -> None:
        """Save to `writer` what `checkpoint` holds; what is learned later does not change it.

        Waits for the device, as the figures of all that was learned belong to it.
        """
        self._collect(everything=True)
        save_state(writer, self._learner, self.graph, self.position)
        writer.note("trainer", "continual")
        writer.note("config", asdict(self.config))
        writer.note("segment_start", self._segment_start)
        writer.note("index", self._index)
        writer.note("replay_from", self._replay_from)
        writer.note("progress", self.progress.to_json())

    @classmethod
    def from_checkpoint(
        cls,
        model: TemporalModel,
        checkpoint: SectionReader,
        config: ContinualConfig | None = None,
        *,
        execution: ExecutionConfig | None = None,
        keep_model: bool = True,
        device: str | torch.device | Device = "cpu",
        device_budget: int | str | None = None,
        edge_x: Table | None = None,
        node_x: Table | None = None,
    ) -> ContinualTrainer:
        """Return a trainer that continues where `checkpoint` was taken.

        Args:
            model: Built with the configuration it had then; its parameters are overwritten.
            checkpoint: From `checkpoint()`, by way of `save` and `load`; or another reader of what
                the trainer's `save` has written.
            config: Settings to continue with, None for those it had. Others give other bits;
                another `batch_size` counts micro-batches from here. A larger `replay_horizon`
                reaches further back as the run continues, as far as the model's state was kept.
            execution: As the class; it may differ from run to run.
            device: Where the graph is to be, as `TemporalGraph` takes it. Checkpoints do not
                depend on it.
            device_budget: As `TemporalGraph` takes it.
            keep_model: False starts with `model` as it is and an empty memory; the events, and the
                figures so far, stay.
            edge_x: The table to have the edge features, see `tgflow.train.state.graph_of`; None:
                host memory. Results are the same wherever they are.
            node_x: The table to have the node features, likewise.

        Raises:
            CheckpointError: If it is not of a continual trainer, or the model does not fit it, or
                a file of features that it refers to does not have what it had.
        """
        meta = checkpoint.meta
        graph = graph_of(
            checkpoint,
            "continual",
            edge_x,
            node_x,
            device=device,
            device_budget=device_budget,
        )
        saved = ContinualConfig(**meta["config"])
        trainer = cls(model, graph, saved if config is None else config, execution=execution)
        if keep_model:
            load_learner(trainer._learner, checkpoint)
            trainer._keep_past()
            if model.state is not None:
                kept = max(0, trainer.position - _kept_past(saved))
                trainer._replay_from = max(meta["replay_from"], kept)
        if trainer.config.batch_size == saved.batch_size:
            trainer._segment_start, trainer._index = meta["segment_start"], meta["index"]
        trainer.progress = Progress.from_json(meta["progress"])
        return trainer


def _kept_past(config: ContinualConfig) -> int:
    """Return how many events back a model's state can be read after training with `config`."""
    return config.replay_horizon if config.replay_ratio > 0 and config.updates > 0 else 0
