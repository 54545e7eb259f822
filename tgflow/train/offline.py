"""Offline training: epochs over the first part of a log, chosen and tested on what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tgflow.batch import AnyBatch
from tgflow.checkpoint import Checkpoint, CheckpointError
from tgflow.checkpoint.parts import Part
from tgflow.checkpoint.typed import read_as
from tgflow.cuda.clock import clock_of
from tgflow.cuda.device import Device
from tgflow.describe import described
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.metrics import find_metrics
from tgflow.model import TemporalModel, device_of_model
from tgflow.peers import Alone, Peers
from tgflow.plan.in_order import Task
from tgflow.plan.loader import BatchSource, Loader, joined_shares, sliced_tasks
from tgflow.plan.parts import BatchPart, PartedPlan
from tgflow.plan.plan import Plan
from tgflow.state import SpreadState
from tgflow.tables.table import Table
from tgflow.train import evaluate as passes
from tgflow.train.caches import first_rows, isolate_evaluation
from tgflow.train.config import ExecutionConfig, OfflineConfig
from tgflow.train.evaluate import INDUCTIVE, Scored, prefix_metrics
from tgflow.train.finite import BatchPlace
from tgflow.train.learning_task import LearningTask, TaskLabels
from tgflow.train.losses import LossLike
from tgflow.train.observe import BatchRecord, Callback, Callbacks, Stage
from tgflow.train.offline_plans import OfflinePlans, check_eval_neighbors
from tgflow.train.offline_progress import (
    BestEpoch,
    OfflineProgress,
    chosen_epoch,
    epoch_record,
    pass_figures,
    protocol_figures,
)
from tgflow.train.optimizers import OptimizerLike, SchedulerLike
from tgflow.train.progress_bar import progress_bar
from tgflow.train.rank_control import RankControl
from tgflow.train.rank_reducer import reducer_of
from tgflow.train.reducer import check_sliceable, score_values
from tgflow.train.reuse import enclose_pass, reuse_of
from tgflow.train.split import chronological_split
from tgflow.train.state import graph_of, load_learner, save_learner, save_state
from tgflow.train.step import TrainStep


@described
class OfflineTrainer:
    """Trains on the first 70 % of a log, chooses the epoch on the next 15 %, tests on the last.

    Training samples a graph of training events alone; evaluation samples the whole graph. The
    model's state starts each epoch empty, and continues from training into validation and from
    there into the test, so that nothing evaluated leaves a trace in what training sees. A model
    without parameters makes one pass, whose loss is only measured.

    Args:
        model: Model to train, memory included.
        graph: All events; not modified.
        config: Settings.
        observer: Hears of batches and epochs, or several; on a GPU up to 16 batches behind.
        execution: How a GPU is used, if the model is on one. Where steps are captured, modules and
            parameters put into the model after the first of them are not noticed: do that before,
            or set `capture=False`.
        ids: Of the stream; needed for `config.fixed_negatives`, whose nodes go by their names.
        peers: The ranks that learn together, as `tgflow.join` returns them; None: this process
            alone. All of them have the same model, graph and settings; each prepares and computes
            some slices of each batch (`config.slices`), and all of them end with the bits of one
            process. Rank 0 alone has metrics, and chooses the epoch for all. Batches that come in
            parts, for their many negatives, are computed by every rank.
        task: What is learned and measured beside links, such as labels of events; None: nothing.
        optimizer: A name such as "adamw", a mapping such as {"name": "sgd", "momentum": 0.9}, or a
            function from parameters to an optimizer; None: `config.optimizer`.
        lr_scheduler: Likewise, such as {"name": "cosine", "T_max": 10_000}, or a function from the
            optimizer to a schedule, which is stepped after each update; None:
            `config.lr_scheduler`.
        loss: A name, or a function from `tgflow.Scores` to a loss; None: `config.loss`.

    Raises:
        ValueError: If a part would have no events, fixed negatives are of other events,
            `config.slices` is more than 1 and the model stores whole batches alone, its memory or
            features are sharded, it takes no other neighbors than its own and
            `config.eval_neighbors` are others, or `config.reuse` asks for rows that cannot be
            reused. Or if there is a task, and the model lacks its decoder, the events lack labels
            that differ, or batches come in slices, with fixed negatives or with reused rows.
        WorldError: If there are more ranks than slices.
        OSError: If fixed negatives cannot be read.

    Example:
        >>> graph = tg.TemporalGraph.from_events(many)
        >>> trainer = tg.OfflineTrainer(tg.GraphMixer(), graph, tg.OfflineConfig(epochs=2))
        >>> result = trainer.fit()
        >>> result["num_epochs"], 0 <= result["test.ap"] <= 1
        (2, True)
    """

    def __init__(
        self,
        model: TemporalModel,
        graph: TemporalGraph,
        config: OfflineConfig | None = None,
        observer: Callback | Sequence[Callback] | None = None,
        *,
        execution: ExecutionConfig | None = None,
        ids: NodeIds | None = None,
        peers: Peers | None = None,
        task: LearningTask | None = None,
        optimizer: OptimizerLike | None = None,
        lr_scheduler: SchedulerLike | None = None,
        loss: LossLike | None = None,
    ) -> None:
        self.config = c = OfflineConfig() if config is None else config
        check_sliceable(model, c.slices)
        if task is not None:
            task.check(model)
            _check_settings(c)
        self._select = None if task is None else task.select
        if isinstance(model.state, SpreadState):
            raise ValueError(
                "a sharded memory is for a ContinualTrainer; leave the model's state as it is"
            )
        check_eval_neighbors(model, c)
        self._peers = peers = Alone() if peers is None else peers
        control = RankControl(peers, lambda: self._learner.compute_seconds)
        execution = ExecutionConfig() if execution is None else execution
        self.model, self.graph = model, graph
        self._observer = Callbacks(observer)
        self._metrics = find_metrics(c.metrics)
        self.split = chronological_split(
            graph.log.read(0, graph.num_events),
            val_ratio=c.val_ratio,
            test_ratio=c.test_ratio,
            new_node_ratio=c.new_node_ratio,
            seed=c.data_seed,
        )
        self._learner = TrainStep(
            model,
            seed=c.seed,
            learning_rate=c.learning_rate,
            weight_decay=c.weight_decay,
            grad_clip=c.grad_clip,
            loss=c.loss if loss is None else loss,
            optimizer=c.optimizer if optimizer is None else optimizer,
            lr_scheduler=c.lr_scheduler if lr_scheduler is None else lr_scheduler,
            execution=execution,
            num_nodes=lambda: graph.num_nodes,
            reducer=reducer_of(peers, c.slices, model, device_of_model(model), control),
            task=task,
        )
        self._preparation = clock_of(self._learner.device)
        self._captures = execution.capture
        self._epochs = c.epochs if self._learner.learns else 1
        self._plans = OfflinePlans(graph, model, c, self.split, ids)
        self._train_plan = self._plans.training()
        self._labels = {} if task is None else self._labels_of(task)
        """Labels of the events of training, which have other positions there, and of all."""
        self.reuse = reuse_of(c.reuse, self._learner, self._train_plan, peers.world)
        """What reuses rows, and its `stats`; None where `config.reuse` does not ask for it."""
        num = c.mrr_negatives if c.select == "mrr" else 1
        self._val_plan = self._plans.evaluation("val", c.negatives[0], num)
        self._progress, self._is_done = OfflineProgress(), False
        self._parts: list[Part] = [self._progress, *([] if self.reuse is None else [self.reuse])]

    def _labels_of(self, task: LearningTask) -> dict[TemporalGraph, TaskLabels]:
        """Return the labels of the training's graph, and of the whole one, which is evaluated.

        Raises:
            ValueError: If labels are missing, or those of a part give no figure to choose by.
        """
        graph, split, training = self.graph, self.split, self._train_plan.graph
        labels = task.labels_of(graph)
        if task.select is not None:
            labels.check_measurable("validation", split.val_start, split.test_start)
        labels.check_measurable("the test", split.test_start, graph.num_events)
        val_t = int(graph.log.read(split.val_start, split.val_start + 1).t)
        return {training: task.labels_of(training, labels, val_t), graph: labels}

    def _facts(self) -> dict[str, object]:
        split, best = self.split, self._progress.best
        return {
            "model": type(self.model).__name__,
            "num_train": len(split.train),
            "num_val": split.test_start - split.val_start,
            "num_test": self.graph.num_events - split.test_start,
            "num_epochs": self.num_epochs,
            "best_epoch": None if best is None else best.epoch,
        }

    @property
    def num_epochs(self) -> int:
        """Epochs that were trained, also before the training was resumed."""
        return self._progress.num_epochs

    def fit(
        self, after_epoch: Callable[[], object] | None = None, *, progress: bool | None = None
    ) -> dict[str, Any]:
        """Train, choose, test; the model is left with the best parameters and all events stored.

        Args:
            after_epoch: Called after each epoch: when `save_progress` may be.
            progress: Whether rank 0 shows a bar, on stderr; None: on a terminal, or in a notebook.

        Returns:
            Flat and fit for JSON: `test.ap`, `test.mrr`, `inductive.test.ap`, `val.ap`, ... A
            further kind of negatives goes by its name, as in `test.historical.ap`. AP and AUC
            are means over batches (`ap_pooled` over all scores), MRR and Hits@k over events. Only
            rank 0 has metrics.

        Raises:
            TrainingDiverged: If a loss or score is not finite.
            BatchError: If a batch cannot be prepared.
        """
        with self._observer.also(
            progress_bar(self._peers.rank == 0 and progress, metrics=self.config.metric_names)
        ):
            return self._fitted(after_epoch)

    def _fitted(self, after_epoch: Callable[[], object] | None) -> dict[str, Any]:
        progress, patience = self._progress, self.config.patience
        while progress.num_epochs < self._epochs and progress.num_idle < patience:
            progress.best = self._epoch(progress.num_epochs, progress.best)
            if after_epoch is not None:
                after_epoch()
        best, self._is_done = progress.best, True
        assert best is not None
        out = self._summary() | prefix_metrics("val", best.val)
        self.model.load_state_dict(best.parameters)
        for kind in self.config.negatives:
            self._load_state(best.state)
            self.model.settle()
            name = "test" if kind == self.config.negatives[0] else f"test.{kind}"
            plan = self._plans.evaluation("test", kind, self.config.mrr_negatives)
            hear = partial(self._hear_test, kind)
            out |= prefix_metrics(name, self._evaluate("test", best.epoch, plan, hear))
        return out | self.model.figures()

    def save_progress(self, writer: Checkpoint) -> None:
        """Save what `load_progress` needs, within `fit`: see its `after_epoch`."""
        save_learner(writer, self._learner)
        for part in self._parts:
            part.save(writer)

    def load_progress(self, reader: Checkpoint) -> None:
        """Have `fit` go on after the epochs that another trainer had saved, with the same bits.

        Args:
            reader: Of what a trainer of such a model, graph and settings has saved.

        Raises:
            CheckpointError: If it does not fit this model.
        """
        load_learner(self._learner, reader)
        for part in self._parts:
            part.load(reader)

    def checkpoint(self) -> Checkpoint:
        """Return model, memory, optimizer and events as they are; after `fit`, the best of them.

        Of one taken within `fit`, see its `after_epoch`, `from_checkpoint` goes on.
        """
        checkpoint = Checkpoint({})
        self.save_to(checkpoint)
        return checkpoint

    def save_to(self, writer: Checkpoint) -> None:
        """Save to `writer` what `checkpoint` holds."""
        save_state(writer, self._learner, self.graph, self.graph.num_events, self.config.slices)
        writer.note("trainer", "offline")
        writer.note("config", asdict(self.config))
        is_under_way = self._progress.num_epochs > 0 and not self._is_done
        writer.note("under_way", is_under_way)
        for part in self._parts if is_under_way else ():
            part.save(writer)

    @classmethod
    def from_checkpoint(
        cls,
        model: TemporalModel,
        checkpoint: Checkpoint,
        config: OfflineConfig | None = None,
        observer: Callback | Sequence[Callback] | None = None,
        *,
        execution: ExecutionConfig | None = None,
        ids: NodeIds | None = None,
        task: LearningTask | None = None,
        optimizer: OptimizerLike | None = None,
        lr_scheduler: SchedulerLike | None = None,
        loss: LossLike | None = None,
        device: str | torch.device | Device = "cpu",
        edge_x: Table | None = None,
        node_x: Table | None = None,
    ) -> OfflineTrainer:
        """Return a trainer whose `fit` goes on after an epoch, and ends with the same bits.

        Args:
            model: Built with the configuration it had then; its parameters are overwritten.
            checkpoint: What `checkpoint` returned within `fit`, by way of `save` and `load`.
            config: Settings to go on with, None for those it had; others give other bits.
            observer: As the class.
            execution: As the class.
            ids: As the class.
            task: As the class.
            optimizer: As the class; give again what is not in the settings, as `lr_scheduler` and
                `loss`.
            lr_scheduler: As the class.
            loss: As the class.
            device: Where the graph is to be, as `TemporalGraph` takes it.
            edge_x: The table to have the edge features; None: host memory.
            node_x: The table to have the node features, likewise.

        Raises:
            CheckpointError: If it was not taken within `fit`, or does not fit the model.
        """
        graph = graph_of(checkpoint, "offline", edge_x, node_x, device=device)
        if not checkpoint.meta.get("under_way"):
            raise CheckpointError("there is no epoch to go on after: it was not taken within fit")
        if config is None:
            config = read_as(OfflineConfig, checkpoint.meta.get("config"), "config")
        trainer = cls(
            model,
            graph,
            config,
            observer,
            execution=execution,
            ids=ids,
            task=task,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            loss=loss,
        )
        trainer.load_progress(checkpoint)
        return trainer

    def _epoch(self, epoch: int, best: BestEpoch | None) -> BestEpoch:
        """Train and validate once; return the best epoch, which may be this one."""
        totals = self._progress.totals
        before = replace(totals)
        loss = self._train(epoch)
        rows_after = partial(first_rows, self._train_plan, epoch + 1, self._epochs)
        with isolate_evaluation(self.graph, rows_after):
            val = self._evaluate("val", epoch, self._val_plan)
        select = self._select or self.config.select
        is_best = chosen_epoch(self._peers, select, epoch, val, best) == epoch
        record = epoch_record(epoch, loss, val, totals.since(before), is_best=is_best)
        self._observer.on_epoch(record)
        return best if best is not None and not is_best else BestEpoch.of(self.model, epoch, val)

    def _hear_test(self, kind: str, scored: Scored) -> None:
        place, positive, negative, _ = scored
        self._observer.on_test_scores(kind, place.host.eid, positive, negative)

    def _train(self, epoch: int) -> float:
        """Learn from all training events, from an empty state; return the mean loss."""
        if self.model.state is not None:
            self.model.state.reset()
        learner, clock, totals = self._learner, self._preparation, self._progress.totals
        with totals.passing(
            len(self.split.train), lambda: (learner.compute_seconds, clock.seconds)
        ):
            total = sum(self._losses(epoch))
        return total / len(self._train_plan)

    def _losses(self, epoch: int) -> Iterator[float]:
        """Learn from all training events; yield the loss of each batch, once it is known."""
        notify = partial(self._notify, "train", epoch, len(self._train_plan))
        learner, results = self._learner, self._learner.new_results()

        def known(*, everything: bool = False) -> Iterator[float]:
            for place, values in results.take(everything=everything):
                if "positive" in values:
                    learner.check_late(place, **values)
                notify(place, loss := float(values["loss"]))
                yield loss

        with enclose_pass(learner, self.reuse) as learn:
            for batch in self._training_batches(epoch):
                step = learn(batch)
                learner.commit(batch, step.scores)
                results.put(BatchPlace.of(batch), score_values(step.scores) | {"loss": step.loss})
                yield from known()
        yield from known(everything=True)

    def _training_batches(self, epoch: int) -> Iterable[AnyBatch]:
        """Return the batches of an epoch to learn from."""
        plan, reuse = self._train_plan, self.reuse
        if reuse is None:
            return self._attached(plan.graph, self._batches(plan, epoch))
        reuse.restart()
        tasks = ((epoch, index) for index in range(len(plan)))
        return self._loaded(*reuse.batches(tasks, self.config.num_threads))

    def _batches(self, plan: BatchSource, epoch: int) -> Iterable[AnyBatch]:
        """Return the batches of an epoch; slices of them, unless they come in parts."""
        tasks = ((epoch, index) for index in range(len(plan)))
        if self.config.slices == 1 or isinstance(plan, PartedPlan):
            return self._loaded(plan, tasks)
        wanted = self._learner.reducer.wanted(self.config.slices)
        made: Any = iter(self._loaded(plan, sliced_tasks(tasks, wanted), len(wanted)))
        return joined_shares(made, len(wanted))

    def _loaded(self, plan: BatchSource, tasks: Iterable[Task], num_wanted: int = 1) -> Loader:
        """Return the batches of tasks, of each of which `num_wanted` slices come."""
        c = self.config
        return Loader.of_tasks(
            plan,
            tasks,
            num_threads=c.num_threads,
            lookahead="auto" if c.lookahead == "auto" else c.lookahead * num_wanted,
            device=self._learner.device,
            captures=self._captures,
            clock=self._preparation,
        )

    def _attached(self, graph: TemporalGraph, batches: Iterable[AnyBatch]) -> Iterable[AnyBatch]:
        """Return batches of one of the graphs with what the task wants of their labels."""
        labels: Any = self._labels.get(graph)
        return batches if labels is None else map(labels.attach, batches)

    def _notify(
        self,
        stage: Stage,
        epoch: int,
        num_batches: int,
        place: BatchPlace,
        loss: float | None = None,
    ) -> None:
        """Notify callbacks of a batch, and of its loss if there is one."""
        record = BatchRecord(stage, epoch, place.index, num_batches, place.num_new, loss)
        self._observer.on_batch(record)

    def _evaluate(
        self,
        stage: Stage,
        epoch: int,
        plan: Plan,
        on_scores: Callable[[Scored], None] | None = None,
    ) -> dict[str, float]:
        apart = self._evaluate_apart(stage, plan) if self.config.inductive == "apart" else {}
        labels = self._labels.get(plan.graph)
        figures = None if labels is None else labels.figures(pooled=True)

        def on_batch(scored: Scored) -> None:
            if figures is not None:
                figures.add(scored.place.host, scored.positive, scored.classes)
            if on_scores is not None:
                on_scores(scored)
            self._notify(stage, epoch, len(plan), scored.place)

        found = self._measured(plan, on_batch)
        if figures is not None:
            apart |= figures.result(with_baselines=stage == "test")
        if self.config.inductive == "apart":
            found = {name: x for name, x in found.items() if not name.startswith(INDUCTIVE)}
        return found | apart

    def _evaluate_apart(self, stage: Stage, plan: Plan) -> dict[str, float]:
        """Measure the events of new nodes in a pass of their own, which leaves no trace.

        As in DyGLib memory sees them alone, and random negatives are destinations of theirs.
        """
        alone = self._plans.of_new_nodes(stage, plan.negatives)
        if alone is None:
            return {INDUCTIVE + "num_events": 0}
        state = self.model.state
        before = None if state is None else state.state_dict()
        found = self._measured(alone, lambda scored: None)
        self._load_state(before)
        return {INDUCTIVE + name: x for name, x in found.items() if not name.startswith(INDUCTIVE)}

    def _measured(self, plan: Plan, on_batch: Callable[[Scored], None]) -> dict[str, float]:
        """Predict and store the events of a plan, in parts if they have many fixed negatives."""
        c = self.config
        source: BatchSource = plan
        parts: Sequence[BatchPart] | None = None
        if c.fixed_negatives is not None and (
            plan.batch_size * (1 + plan.negatives.num) > c.max_pairs
        ):
            with_state = self.model.state is not None
            source = parted = PartedPlan(plan, c.max_pairs, with_storing=with_state)
            parts = parted.parts
        loaded = self._attached(plan.graph, self._batches(source, 0))
        scored = passes.scores_of(self._learner, loaded, parts)
        return passes.evaluate(
            scored, self.split.touches_new, plan.batch_size, on_batch, self._metrics
        )

    def _load_state(self, state: dict[str, Tensor] | None) -> None:
        if self.model.state is not None and state is not None:
            self.model.state.load_state_dict(state)

    def _summary(self) -> dict[str, Any]:
        summary = {
            **protocol_figures(self.config, self.graph, self._select),
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
            **self._plans.counts.figures(self.graph.num_events),
            "num_events": self.graph.num_events,
            "num_nodes": self.graph.num_nodes,
            "train.num_events": len(self.split.train),
            **pass_figures(self._progress),
        }
        return summary if self.reuse is None else summary | self.reuse.figures()


def _check_settings(config: OfflineConfig) -> None:
    """Raise ValueError if settings do not fit a task."""
    for name, is_set in (
        ("slices", config.slices > 1),
        ("fixed_negatives", config.fixed_negatives is not None),
        ("reuse", config.reuse.staleness > 0),
    ):
        if is_set:
            raise ValueError(f"a task learns whole batches as they are: leave {name} out")
