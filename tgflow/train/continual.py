"""Continual learning: each micro-batch of a stream is predicted, then learned, then stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from tgflow.base.choices import GraphPlacement
from tgflow.base.peers import Peers, Shard
from tgflow.checkpoint import Checkpoint, Component
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import StepBatch
from tgflow.graph.stream_state import SpreadState
from tgflow.nn.model import TemporalModel, check_is_model, device_of_model
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.loader import BatchSource
from tgflow.plan.negatives import NegativeSource
from tgflow.ranks.control import RankControl
from tgflow.train.config import ContinualConfig, ExecutionConfig, parse_further
from tgflow.train.finite import TrainingDiverged
from tgflow.train.losses import LossLike
from tgflow.train.optimizers import OptimizerLike, SchedulerLike
from tgflow.train.progress import Progress
from tgflow.train.stepper import Stepper, replay_past
from tgflow.train.stream_trainer import StreamTrainer

if TYPE_CHECKING:
    from tgflow.graph.tables.table import Table
    from tgflow.train.event_scores import EventScorer
    from tgflow.train.tasks.labels import EventFigures


class ContinualTrainer(StreamTrainer):
    """Learns from a stream online, and measures how well each event was predicted before.

    A model without parameters is only measured, without replay or training negatives. Events
    already in the graph are history, neither predicted nor learned.

    Args:
        model: Model to train, memory included: with a `ShardedMemory` as `state` it holds the rows
            of this rank's nodes alone, fetches others once a micro-batch, and is saved by all ranks
            together, each to a `Checkpoint` of its shard.
        graph: Grows by the stream's events; append to it nowhere else. A sharded one
            (`TemporalGraph(shard=peers.shard)`) requests neighbors from the ranks that own the
            nodes; `steps` then needs the same batches on all ranks, prepares up to 8 micro-batches
            of a batch together, and must not be called again after it was left early.
        config: Settings.
        execution: GPU settings, if the model is on one. With captured steps, replace modules or
            parameters of the model before the first step, or set `capture=False`.
        peers: The ranks that learn together, as `tgflow.join` returns them; None: this process
            alone. All need the same model, graph and settings; `run` reads the stream on rank 0.
            Each prepares and computes some slices of each batch (`config.slices`); the result has
            the same bits as one process. Only rank 0 has metrics; records of other ranks have
            position and loss.
        scores: Whether records have the scores of each event (`StepRecord.scores`), with
            probabilities calibrated online; and of its label, where `config.task` predicts labels.
            Synchronizes each micro-batch before it is learned.
        optimizer: A name such as "adamw", a mapping such as {"name": "sgd", "momentum": 0.9}, or a
            function from parameters to an optimizer; None: `config.optimizer`.
        lr_scheduler: Likewise, such as {"name": "cosine", "T_max": 10_000}, or a function from the
            optimizer to a schedule, which is stepped after each update; None:
            `config.lr_scheduler`.
        loss: A name, or a function from `tgflow.Scores` to a loss; None: `config.loss`.
        negatives: Negatives to learn from: a function of your own, `tgflow.plan.NegativeFunction`,
            given ones or a mix; None: `config.negatives`.

    Raises:
        ValueError: If features of the graph are cached with `policy="belady"`, which needs future
            accesses (use `policy="lru"` for streams). If `config.slices` is more than 1 and the
            model stores only whole batches. If the graph or its features are sharded and it or the
            model is on a GPU.
        WorldError: If there are more ranks than slices.

    Example:
        >>> trainer = tg.ContinualTrainer(tg.TGN(), tg.TemporalGraph())
        >>> for step in trainer.steps([many]):
        ...     print(step.stop, "ap" in step.running)
        200 True
        400 True
    """

    _steppers: Sequence[Stepper] = ()

    def __init__(
        self,
        model: TemporalModel,
        graph: TemporalGraph,
        config: ContinualConfig | None = None,
        *,
        execution: ExecutionConfig | None = None,
        peers: Peers | None = None,
        scores: bool = False,
        optimizer: OptimizerLike | None = None,
        lr_scheduler: SchedulerLike | None = None,
        loss: LossLike | None = None,
        negatives: NegativeSource | None = None,
    ) -> None:
        check_is_model(model)
        config = ContinualConfig() if config is None else config
        task = None
        if config.task.kind != "link":
            from tgflow.train.tasks.labels import task_with_decoder

            task = task_with_decoder(config.task, model, graph)
        if task is not None and config.slices > 1:
            raise ValueError(
                "a task requires whole batches in one process: leave slices at 1 (--slices 1, "
                "without --nproc)"
            )
        is_spread = graph.shard.world > 1 or isinstance(model.state, SpreadState)
        if config.mrr_negatives == "all" and is_spread:
            raise ValueError(
                'mrr_negatives="all" ranks in one process, which lacks neighbors or memory if they '
                "are sharded: leave sharding out, or give a number of negatives"
            )
        peers, device = Peers() if peers is None else peers, device_of_model(model)
        self.control: RankControl = RankControl(peers, lambda: self._learner.compute_seconds)
        super().__init__(graph, config, execution, device, peers, task)
        self.model = model
        given: dict[str, Any] = {"optimizer": optimizer, "lr_scheduler": lr_scheduler, "loss": loss}
        given["negatives"] = negatives
        self.not_in_config = [name for name, value in given.items() if value is not None]
        """Arguments given beside `config`, which does not hold them."""
        self.scorer: EventScorer | None = None
        """Makes `StepRecord.scores`; its `on_scores` is called before a micro-batch is learned."""
        if scores:
            from tgflow.train.event_scores import EventScorer

            self.scorer = EventScorer(
                self.labels, sum(parse_further(config.mrr_further).values()), config.mrr_every
            )
        self._figures: EventFigures | None = None
        if self.labels is not None:
            self._figures = self.labels.figures(pooled=False, scratch=self.execution.scratch)
        self._stepper = Stepper(
            model,
            graph,
            config,
            scorer=self.scorer,
            figures=self._figures,
            labels=self.labels,
            execution=self.execution,
            peers=peers,
            control=self.control,
            task=task,
            **given,
        )
        self._steppers = [self._stepper]
        self._learner, self._ready = self._stepper.learner, self._stepper.records
        self._counts = CountHistory(graph, model.counts)

    def _facts(self) -> dict[str, object]:
        return {"model": type(self.model).__name__, **super()._facts()}

    @property
    def spread_state(self) -> SpreadState | None:
        """The model's state, if each rank holds that of its own nodes."""
        state = self.model.state
        return state if isinstance(state, SpreadState) else None

    def _source(self) -> BatchSource:
        self._current = self._plans(self.model, self._counts)
        return self._current

    def _step(self, batch: StepBatch, following: Iterator[StepBatch]) -> StepBatch:
        """Predict, then learn, then store one micro-batch; `following` has its updates' batches."""
        self.control.begin()
        return self._stepper.step(batch, following, self._current.predict)

    def _collect(self, *, everything: bool) -> None:
        """Make records of values that reached the host; roll back a batch that was not finite."""
        try:
            self._stepper.collect(everything=everything)
        except TrainingDiverged as error:
            self.position, self._segment_start, self._index = error.before
            raise

    def result(self) -> dict[str, Any]:
        """Return the run's metrics so far, flat and JSON-serializable, without undefined ones.

        `prequential.*` are over all events, `test.*` over the last `test_share` of them, from
        `test.start_event` on; each event was predicted before it was learned. AP and AUC are means
        over micro-batches, MRR and Hits@k over events. Times include those before a resume.
        """
        c, progress = self.config, self.progress
        test_start = progress.timeline.tail_start(c.test_share)
        out: dict[str, Any] = {
            **self._about(self._stepper.negatives),
            "seed": c.seed,
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
            **self.model.figures(),
            **self._counts.figures(self.position),
            "num_events": progress.num_events,
            "num_nodes": self.graph.num_nodes,
            "test.start_event": test_start,
        }
        out |= self._stepper.result(test_start)
        if self._figures is not None:
            labels = self._figures.result(with_intervals=True) | self._figures.of_rules()
            out |= {f"prequential.{name}": value for name, value in labels.items()}
        return out

    @property
    def _of_labels(self) -> tuple[Component | None, ...]:
        history = None if self.labels is None else self.labels.history
        return history, self._figures, self._stepper.late

    def save_to(self, writer: Checkpoint) -> None:
        """Save to `writer` the contents of `checkpoint`; later training does not change them.

        Synchronizes with the device, as it includes the metrics of all learned events.
        """
        from tgflow.train.trainer_state import save_state

        self._collect(everything=True)
        save_state(writer, self._learner, self.graph, self.position, self.config.slices)
        writer.note("trainer", "continual")
        writer.note("config", asdict(self.config))
        self._save_place(writer)
        writer.note("progress", self.progress.to_json())
        if self.scorer is not None:
            writer.note("scores", True)
            self.scorer.calibration.save(writer)
        for each in self._of_labels:
            if each is not None:
                each.save(writer)

    @classmethod
    def from_checkpoint(
        cls,
        model: TemporalModel,
        checkpoint: Checkpoint,
        config: ContinualConfig | None = None,
        *,
        keep_model: bool = True,
        device: str | torch.device | Device = "cpu",
        device_budget: int | str | None = None,
        edge_x: Table | None = None,
        node_x: Table | None = None,
        shard: Shard | None = None,
        table: GraphPlacement = "host",
        directory: str | PathLike[str] | None = None,
        **options: Any,
    ) -> ContinualTrainer:
        """Return a trainer that continues where `checkpoint` was taken.

        Args:
            model: Built with the configuration it had then; its parameters are overwritten.
            checkpoint: From `checkpoint()`, through `save` and `load`; or another reader of what
                `save_to` wrote.
            config: Settings to continue with; None: the saved ones. Other settings change the
                results; another `batch_size` counts micro-batches from here. A larger
                `replay_horizon` reaches further back as the run continues, as far as the model's
                state was kept.
            device: Device of the graph, as in `TemporalGraph`. Checkpoints do not depend on it.
            device_budget: As in `TemporalGraph`.
            keep_model: False keeps the parameters of `model` and starts with an empty memory;
                events and metrics so far are loaded.
            edge_x: Table to load the edge features into, see `graph_of`; None:
                host memory. Results are the same wherever they are.
            node_x: Table to load the node features into, likewise.
            shard: As in `TemporalGraph`; may differ from run to run.
            table: As in `TemporalGraph`. Checkpoints do not depend on them.
            directory: Likewise.
            options: Further arguments of the class. `execution` and `peers` may differ from run to
                run. With `scores` the checkpoint's calibration continues, if it has one, and with
                a task its metrics, if the model is kept; pending labels are those of the
                checkpoint's events. An `optimizer`, `lr_scheduler`, `loss` or `negatives` that is
                not in the settings must be given again.

        Raises:
            CheckpointError: If it is not of a continual trainer, the model does not fit it, or a
                feature file that it refers to has changed.
        """
        from tgflow.train.trainer_state import graph_of, load_learner

        meta = checkpoint.meta
        graph = graph_of(
            checkpoint,
            "continual",
            edge_x,
            node_x,
            device=device,
            device_budget=device_budget,
            shard=shard,
            table=table,
            directory=directory,
        )
        saved: ContinualConfig = read_as(ContinualConfig, meta.get("config"), "config")
        settings = saved if config is None else config
        trainer = cls(model, graph, settings, **options)
        if keep_model:
            load_learner(trainer._learner, checkpoint)
            if trainer.scorer is not None and "scores" in meta:
                trainer.scorer.calibration.load(checkpoint)
            for each in trainer._of_labels:
                if each is not None:
                    each.load(checkpoint)
            trainer._stepper.keep_past()
            if model.state is not None:
                kept = max(0, trainer.position - replay_past(saved))
                trainer._replay_from = max(read_natural(meta, "replay_from"), kept)
        if trainer.config.batch_size == saved.batch_size:
            trainer._load_place(checkpoint)
        trainer._stepper.progress = read_as(Progress, meta.get("progress"), "progress")
        return trainer
