"""Offline training: epochs over the first part of a log, model selection and test on the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tgflow.base.choices import NegativeKind
from tgflow.base.describe import described
from tgflow.base.keys import derive_key
from tgflow.base.locks import OneThread
from tgflow.base.metrics import LinkMetrics, find_metrics
from tgflow.base.peers import Peers
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.checkpoint import Checkpoint, CheckpointError, Component
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import HostEvents, StepBatch
from tgflow.graph.ids import NodeIds
from tgflow.graph.stream_state import SpreadState
from tgflow.graph.tables.row_view import RowView
from tgflow.graph.tables.table import Table
from tgflow.nn.choice import Choice
from tgflow.nn.model import TemporalModel, has_parameters
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.draws import BatchPart
from tgflow.plan.in_order import Task
from tgflow.plan.loader import BatchSource, Loader, joined_shares, sliced_tasks
from tgflow.plan.negatives import (
    FixedNegatives,
    FixedSplit,
    NegativeSampler,
    NegativeSource,
    PairHistory,
)
from tgflow.plan.plan import Plan
from tgflow.ranks.control import RankControl
from tgflow.train.caches import first_rows, isolate_evaluation
from tgflow.train.config import ExecutionConfig, OfflineConfig
from tgflow.train.finite import BatchPlace
from tgflow.train.losses import LossLike
from tgflow.train.observe import BatchRecord, Callback, Callbacks, EpochRecord, Stage
from tgflow.train.optimizers import OptimizerLike, SchedulerLike
from tgflow.train.plans import loader_threads, make_plan, negatives_learned, training_negatives
from tgflow.train.progress_bar import progress_bar
from tgflow.train.protocols import offline_line
from tgflow.train.results import Results
from tgflow.train.reuse import reuse_of
from tgflow.train.split import chronological_split
from tgflow.train.stepper import learner_of
from tgflow.train.tasks.labels import EventLabels, LabelTask, task_with_decoder
from tgflow.train.trainer_state import graph_of, load_learner, save_learner, save_state

INDUCTIVE = "inductive."
"""Prefix of metrics over the events that touch a new node."""
_COLUMNS = ("eid", "src", "dst", "t")
RankedAmong = int | Literal["all"]
"""Number of negatives to rank an event among, or all destinations."""


class Scored(NamedTuple):
    """A batch and its predictions, on the host."""

    place: BatchPlace
    positive: Tensor
    negative: Tensor
    """Padding -inf."""
    classes: Tensor | None = None
    """Logits of the events' labels, if a task predicts them."""


@dataclass(frozen=True, slots=True, eq=False)
class BestEpoch:
    """The best epoch so far, and the model as of that epoch's validation."""

    epoch: int
    val: dict[str, float]
    parameters: dict[str, Tensor]
    state: dict[str, Tensor] | None


@dataclass(slots=True)
class PassTotals:
    """Total cost of all training passes."""

    epochs: int = 0
    events: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0

    def add(self, other: PassTotals) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


class OfflineProgress(Component):
    """State of a training beside its learner, between epochs, each of which begins empty."""

    name = "best"
    state_name = "best_state"

    def __init__(self) -> None:
        self.totals = PassTotals()
        self.best: BestEpoch | None = None

    @property
    def num_idle(self) -> int:
        """Epochs since the best one, 0 without any."""
        return 0 if self.best is None else self.totals.epochs - 1 - self.best.epoch

    def save(self, writer: Checkpoint) -> None:
        best = self.best
        assert best is not None, "there is no epoch to save"
        noted = {"epoch": best.epoch, "val": best.val, "has_state": best.state is not None}
        writer.note(self.name, noted | {"totals": asdict(self.totals)})
        writer.put(self.name, best.parameters)
        if best.state is not None:
            writer.put(self.state_name, best.state)

    def load(self, reader: Checkpoint) -> None:
        noted = read_as(dict[str, Any], reader.meta.get(self.name), self.name)
        totals = read_as(PassTotals, noted.get("totals"), f"{self.name}.totals")
        val = read_as(dict[str, int | float], noted.get("val"), f"{self.name}.val")
        has_state = read_as(bool, noted.get("has_state"), f"{self.name}.has_state")
        epoch = read_natural(noted, "epoch", most=max(totals.epochs - 1, 0))
        state = reader.get(self.state_name) if has_state else None
        self.totals, self.best = totals, BestEpoch(epoch, val, reader.get(self.name), state)


def is_better(select: str, found: Mapping[str, float], best: Mapping[str, float]) -> bool:
    if select == "ap+auc":
        return found["ap"] >= best["ap"] and found["auc"] >= best["auc"]
    return found[select] > best[select]


@described
class OfflineTrainer:
    """Trains on the first 70 % of a log, chooses the epoch on the next 15 %, tests on the rest.

    Training samples a graph of training events alone; evaluation samples the whole graph. The
    model's state starts each epoch empty, and continues from training into validation and into the
    test, so that evaluation leaves no trace in training. A model without parameters makes one pass,
    whose loss is only measured.

    Args:
        model: Model to train, memory included.
        graph: All events; not modified.
        config: Settings.
        observer: Callback or callbacks for batches and epochs; on a GPU up to 16 batches late.
        execution: GPU settings, if the model is on one. With captured steps, replace modules or
            parameters of the model before the first step, or set `capture=False`.
        ids: Ids of the stream; required by `config.fixed_negatives`, which identify nodes by them.
        peers: The ranks that learn together, as `tgflow.join` returns them; None: this process
            alone. All need the same model, graph and settings; each prepares and computes some
            slices of each batch (`config.slices`); the result has the same bits as one process.
            Only rank 0 has metrics, and it chooses the epoch for all. Batches split for their many
            negatives are computed by every rank.
        task: A further task to learn and measure beside links, such as labels of events; None:
            none.
        optimizer: As in `ContinualTrainer`.
        lr_scheduler: Likewise.
        loss: Likewise.
        negatives: Likewise, of the log of the training events.

    Raises:
        ValueError: If a part has no events, fixed negatives belong to other events, `config.slices`
            is more than 1 and the model stores only whole batches, its memory or features are
            sharded, it does not accept `config.eval_neighbors`, or `config.reuse` does not apply to
            it. With a task, if the model lacks its decoder, the events lack distinct labels, or
            slices, fixed negatives or reuse are configured.
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
        optimizer: OptimizerLike | None = None,
        lr_scheduler: SchedulerLike | None = None,
        loss: LossLike | None = None,
        negatives: NegativeSource | None = None,
    ) -> None:
        self.config = c = OfflineConfig() if config is None else config
        self._peers = peers = Peers() if peers is None else peers
        task = task_with_decoder(c.task, model, graph)
        _check(model, c, task)
        self._select = None if task is None else task.select
        control: RankControl = RankControl(peers, lambda: self._learner.compute_seconds)
        execution = ExecutionConfig() if execution is None else execution
        self.model, self.graph, self._ids = model, graph, ids
        model.choose_by = c.select_metric
        self._observer = Callbacks(observer)
        self._metrics = find_metrics(c.metrics)
        self._fixed = None if c.fixed_negatives is None else FixedSplit.load(c.fixed_negatives)
        if self._fixed is not None and self._fixed.num_events != graph.num_events:
            raise ValueError(
                f"{c.fixed_negatives} has the split of {self._fixed.num_events:,} events, and the "
                f"stream has {graph.num_events:,}{' with inverses' * c.inverse}; train on the file "
                "that was written with it, whole and under its protocol"
            )
        self.split = chronological_split(
            graph.log.read(0, graph.num_events),
            val_ratio=c.val_ratio,
            test_ratio=c.test_ratio,
            new_node_ratio=c.new_node_ratio,
            seed=c.data_seed,
            starts=None if self._fixed is None else self._fixed[:2],
        )
        self._learner = learner_of(
            model,
            c,
            peers,
            control,
            num_nodes=lambda: graph.num_nodes,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            loss=loss,
            execution=execution,
            checks_at_once=peers.world > 1,  # evaluation sends no gradients, and only scores to one
            task=task,
        )
        self._captures, self._own_negatives = execution.capture, negatives
        self._epochs = c.epochs if self._learner.learns else 1
        self._counts = CountHistory(graph, model.counts)
        self._train_plan = self._training_plan()
        self._labels = {} if task is None else self._labels_of(task)
        """Labels of the training events, numbered as in the training's log, and of all."""
        self.reuse = reuse_of(c.reuse, self._learner, self._train_plan, peers.world)
        """Reuses rows, and has `stats`; None without `config.reuse`."""
        num: RankedAmong = c.mrr_negatives if c.select == "mrr" else 1
        self._val_plan = self._evaluation_plan("val", c.test_negatives[0], num)
        self._apart = WeakKeyDictionary[Plan, Plan | None]()
        """Plans of the events of new nodes alone, by the plan of all."""
        self._fitting = OneThread("two threads within fit would train one model with two epochs")
        self._progress, self._is_done = OfflineProgress(), False
        self._components = [self._progress, *([] if self.reuse is None else [self.reuse])]

    def _labels_of(self, task: LabelTask) -> dict[TemporalGraph, EventLabels]:
        graph, split, training = self.graph, self.split, self._train_plan.graph
        labels = task.labels_of(graph)
        if task.select is not None:
            labels.check_measurable("validation", split.val_start, split.test_start)
        labels.check_measurable("the test", split.test_start, graph.num_events)
        val_t = int(graph.log.read(split.val_start, split.val_start + 1).t)
        return {training: task.labels_of(training, labels, val_t), graph: labels}

    def _training_plan(self) -> Plan:
        c, graph, train = self.config, self.graph, self.split.train
        training = TemporalGraph.from_events(
            graph.log.gather(train),
            graph.direction,
            time_unit=graph.time_unit,
            node_x=graph.node_x,
            device=graph.device,
            device_budget=graph.device_budget,
        )
        if graph.edge_x is not None:
            training.edge_x = RowView(graph.edge_x, train)
        training.log.node_types = types = graph.log.node_types
        draws_all = c.draws.destinations == "all"
        pool = graph.log.read(0, graph.num_events).dst if draws_all else None
        learned, cut, collide = negatives_learned(self.model, c), len(train), c.draws.collide
        drawn = training_negatives(learned, cut=cut, pool=pool, collide=collide, types=types)
        return make_plan(
            training,
            self.model,
            c,
            drawn if self._own_negatives is None else self._own_negatives,
            seed=c.seed,
            stop=training.num_events,
            for_gradients=True,
        )

    def _evaluation_plan(self, stage: Stage, kind: NegativeKind, num: RankedAmong) -> Plan:
        """Return a plan of the whole graph's validation or test events."""
        c = self.config
        start, stop = self._span(stage)
        number: dict[str, Any] = {kind: 1 if num == "all" else num}
        negatives: NegativeSource = NegativeSampler(
            **number,
            among_all=num == "all",
            filtered=c.filtered and num == "all",
            cut=self.graph.num_events if kind == "random" else None,
            since=self.split.val_start if c.draws.inductive_since == "train" else start,
            collide=c.draws.collide and kind == "random" and num != "all",
            replace=c.draws.replace or kind == "random",
        )
        if c.fixed_negatives is not None and self._fixed and stage in self._fixed.parts:
            negatives = self._fixed_negatives(stage, c.fixed_negatives)
        return self._plan_of_all(negatives, seed=c.data_seed, start=start, stop=stop)

    def _new_nodes_plan(self, stage: Stage, negatives: NegativeSource) -> Plan | None:
        """Return a plan of a part's events of new nodes alone, None if there are none."""
        begin, end = self._span(stage)
        only = begin + self.split.touches_new[begin:end].nonzero().flatten()
        if not len(only):
            return None
        if isinstance(negatives, NegativeSampler) and negatives.random:
            pool = self.graph.log.gather(only).dst
            types, collide = self.graph.log.node_types, negatives.collide
            negatives = NegativeSampler(
                negatives.random, pool=PairHistory.of_pool(pool, types), collide=collide
            )
        seed = derive_key(self.config.data_seed, begin)
        return self._plan_of_all(negatives, seed=seed, only=only)

    def _plan_of_all(self, negatives: NegativeSource, **where: Any) -> Plan:
        counts, fanouts = self._counts, self.config.eval_neighbors
        return make_plan(
            self.graph, self.model, self.config, negatives, counts=counts, fanouts=fanouts, **where
        )

    def _span(self, stage: Stage) -> tuple[int, int]:
        if stage == "val":
            return self.split.val_start, self.split.test_start
        return self.split.test_start, self.graph.num_events

    def _fixed_negatives(self, stage: Stage, name: str) -> FixedNegatives:
        if self._ids is None:
            raise ValueError(
                "fixed_negatives identify nodes by the ids of the stream: pass ids=stream.ids"
            )
        start, stop = self._span(stage)
        path = Path(f"{name}.{stage}.negatives.safetensors")
        found = FixedNegatives.load(path, self._ids, start)
        if len(found) != stop - start:
            raise ValueError(
                f"{path} has negatives of {len(found)} events where its split has {stop - start}; "
                "convert the data set again"
            )
        return found

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
        """Epochs trained, including those before a resume."""
        return self._progress.totals.epochs

    def fit(
        self, after_epoch: Callable[[], object] | None = None, *, progress: bool | None = None
    ) -> dict[str, Any]:
        """Train, select and test; the model ends with the best parameters and all events stored.

        Args:
            after_epoch: Called after each epoch; it may call `save_progress`.
            progress: Whether rank 0 shows a bar, on stderr; None: on a terminal, or in a notebook.

        Returns:
            Flat and JSON-serializable: `test.ap`, `test.mrr`, `inductive.test.ap`, `val.ap`, ...
            Further kinds of negatives are named, as in `test.historical.ap`. AP and AUC are means
            over batches (`ap_pooled` over all scores), MRR and Hits@k over events. Only rank 0 has
            metrics.

        Raises:
            TrainingDiverged: If a loss or score is not finite.
            BatchError: If a batch cannot be prepared.
            RuntimeError: If another thread is within `fit`.
        """
        metrics = (self.config.select_metric, *self.config.metric_names)
        wanted, learns = self._peers.rank == 0 and progress, has_parameters(self.model)
        bar = progress_bar(wanted, metrics=metrics, learns=learns)
        with self._fitting.working(), self._observer.also(bar):
            while self.num_epochs < self._epochs and self._progress.num_idle < self.config.patience:
                self._epoch(self.num_epochs)
                if after_epoch is not None:
                    after_epoch()
            return self._tested()

    def _tested(self) -> dict[str, Any]:
        best, self._is_done = self._progress.best, True
        assert best is not None
        with self.model.lock:
            self.model.load_state_dict(best.parameters)
        out = self._summary(best) | prefix_metrics("val", best.val)
        for kind in self.config.test_negatives:
            self._load_state(best.state)
            self.model.settle()
            name = "test" if kind == self.config.test_negatives[0] else f"test.{kind}"
            plan = self._evaluation_plan("test", kind, self.config.mrr_negatives)
            notify = partial(self._observer.notify, "on_test_scores", kind)
            out |= prefix_metrics(name, self._evaluate("test", best.epoch, plan, notify))
        return out | self.model.figures()

    def save_progress(self, writer: Checkpoint) -> None:
        """Save the state for `load_progress`; only within `fit`, see its `after_epoch`."""
        save_learner(writer, self._learner)
        for each in self._components:
            each.save(writer)

    def load_progress(self, reader: Checkpoint) -> None:
        """Let `fit` continue after the saved epochs of another trainer, with the same bits.

        Args:
            reader: Saved by a trainer with the same model, graph and settings.

        Raises:
            CheckpointError: If it does not fit this model.
        """
        load_learner(self._learner, reader)
        for each in self._components:
            each.load(reader)

    def checkpoint(self) -> Checkpoint:
        """Return model, memory, optimizer and events as they are; after `fit`, the best ones.

        `from_checkpoint` continues one taken within `fit`, see its `after_epoch`.
        """
        checkpoint = Checkpoint({})
        self.save_to(checkpoint)
        return checkpoint

    def save_to(self, writer: Checkpoint) -> None:
        save_state(writer, self._learner, self.graph, self.graph.num_events, self.config.slices)
        writer.note("trainer", "offline")
        writer.note("config", asdict(self.config))
        is_under_way = self.num_epochs > 0 and not self._is_done
        writer.note("under_way", is_under_way)
        for each in self._components if is_under_way else ():
            each.save(writer)

    @classmethod
    def from_checkpoint(
        cls,
        model: TemporalModel,
        checkpoint: Checkpoint,
        config: OfflineConfig | None = None,
        observer: Callback | Sequence[Callback] | None = None,
        *,
        device: str | torch.device | Device = "cpu",
        edge_x: Table | None = None,
        node_x: Table | None = None,
        **options: Any,
    ) -> OfflineTrainer:
        """Return a trainer whose `fit` continues after a saved epoch, with the same bits.

        Args:
            model: Built with the configuration it had then; its parameters are overwritten.
            checkpoint: Result of `checkpoint` within `fit`, through `save` and `load`.
            config: Settings to continue with; None: the saved ones. Others change the results.
            observer: As in the class.
            device: Device of the graph, as in `TemporalGraph`.
            edge_x: Table to load the edge features into; None: host memory.
            node_x: Table to load the node features into, likewise.
            options: Further arguments of the class; give again an `optimizer`, `lr_scheduler`,
                `loss` or `negatives` that is not in the settings.

        Raises:
            CheckpointError: If it was not taken within `fit`, or does not fit the model.
        """
        graph = graph_of(checkpoint, "offline", edge_x, node_x, device=device)
        if not checkpoint.meta.get("under_way"):
            raise CheckpointError("no epoch to continue after: it was not taken within fit")
        if config is None:
            config = read_as(OfflineConfig, checkpoint.meta.get("config"), "config")
        trainer = cls(model, graph, config, observer, **options)
        trainer.load_progress(checkpoint)
        return trainer

    def _epoch(self, epoch: int) -> None:
        """Train and validate once; keep the epoch if it is the best so far."""
        progress, begin = self._progress, self._clocks()
        loss = self._train(epoch)
        spent = (after - then for then, after in zip(begin, self._clocks(), strict=True))
        took = PassTotals(1, len(self.split.train), *spent)
        progress.totals.add(took)
        rows_after = partial(first_rows, self._train_plan, epoch + 1, self._epochs)
        with isolate_evaluation(self.graph, rows_after):
            val = self._evaluate("val", epoch, self._val_plan)
        is_best = self._is_best(epoch, val)
        self._observer.notify(
            "on_epoch",
            EpochRecord(
                epoch=epoch,
                loss=loss,
                val=val,
                is_best=is_best,
                seconds=took.seconds,
                events_per_second=took.events / took.seconds,
                overhead_share=1 - took.compute_seconds / took.seconds,
            ),
        )
        if is_best:
            parameters = {name: x.clone() for name, x in self.model.state_dict().items()}
            state = None if self.model.state is None else self.model.state.state_dict()
            progress.best = BestEpoch(epoch, val, parameters, state)

    def _clocks(self) -> tuple[float, float]:
        return time.perf_counter(), self._learner.compute_seconds

    def _is_best(self, epoch: int, val: Mapping[str, float]) -> bool:
        best, select = self._progress.best, self._select or self.config.select
        wins = best is None or (self._peers.rank == 0 and is_better(select, val, best.val))
        choice = torch.tensor(epoch if best is None or wins else best.epoch)
        self._peers.broadcast(choice, kind="epoch")
        return int(choice) == epoch

    def _train(self, epoch: int) -> float:
        """Learn from all training events, from an empty state; return the mean loss."""
        learner, num = self._learner, len(self._train_plan)
        if self.model.state is not None:
            with self.model.lock:
                self.model.state.reset()
        results: Results[BatchPlace] = learner.new_results()
        losses: list[float] = []

        def collect(*, everything: bool = False) -> None:
            for place, values, is_finite in results.take(everything=everything):
                if not is_finite:
                    learner.check_late(place, values)
                losses.append(float(values["loss"]))
                self._notify("train", epoch, num, place, losses[-1])

        learn = learner.learn if self.reuse is None else partial(self.reuse.learn, learner)
        for batch in self._training_batches(epoch):
            with self.model.lock:
                values = learner.take(batch, learn)
            results.put(BatchPlace.of(batch), *values)
            collect()
        collect(everything=True)
        return sum(losses) / num

    def _training_batches(self, epoch: int) -> Iterable[Any]:
        plan, reuse = self._train_plan, self.reuse
        if reuse is None:
            return self._attached(plan.graph, self._batches(plan, epoch))
        reuse.restart()
        tasks = ((epoch, index) for index in range(len(plan)))
        return self._loaded(*reuse.batches(tasks, loader_threads(self.config, self._peers)))

    def _batches(self, plan: BatchSource, epoch: int) -> Iterable[StepBatch]:
        """Return the batches of an epoch, or the slices of them computed here."""
        tasks = ((epoch, index) for index in range(len(plan)))
        if self.config.slices == 1:
            return self._loaded(plan, tasks)
        schedule = SliceSchedule(self.config.slices, self._peers.world)
        wanted = schedule.slices_of(self._peers.rank)
        made: Any = iter(self._loaded(plan, sliced_tasks(tasks, wanted)))
        return joined_shares(made, len(wanted))

    def _loaded(self, plan: BatchSource, tasks: Iterable[Task]) -> Loader:
        return Loader.of_tasks(
            plan,
            tasks,
            num_threads=loader_threads(self.config, self._peers),
            device=self._learner.device,
            captures=self._captures,
        )

    def _attached(self, graph: TemporalGraph, batches: Iterable[StepBatch]) -> Iterable[StepBatch]:
        labels: Any = self._labels.get(graph)
        return batches if labels is None else map(labels.attach, batches)

    def _notify(
        self, stage: Stage, epoch: int, num: int, place: BatchPlace, loss: float | None = None
    ) -> None:
        record = BatchRecord(stage, epoch, place.index, num, place.num_new, loss)
        self._observer.notify("on_batch", record)

    def _evaluate(
        self,
        stage: Stage,
        epoch: int,
        plan: Plan,
        on_scores: Callable[[Tensor, Tensor, Tensor, Tensor | None], None] | None = None,
    ) -> dict[str, float]:
        is_apart, labels = self.config.inductive == "apart", self._labels.get(plan.graph)
        others = self._evaluate_apart(stage, plan) if is_apart else {}
        figures = None if labels is None else labels.figures(pooled=True)

        def on_batch(scored: Scored) -> None:
            host = scored.place.host
            if figures is not None:
                figures.add(host, scored.positive, scored.classes)
            if on_scores is not None:
                on_scores(host.eid, scored.positive, scored.negative, scored.classes)
            self._notify(stage, epoch, len(plan), scored.place)

        with self._learner.limited_threads():
            metrics, of_new = self._measured(plan, on_batch)
        if figures is not None:
            others |= figures.result(with_intervals=stage == "test")
            others |= figures.of_rules() if stage == "test" else {}
        if not is_apart:
            metrics |= {INDUCTIVE + name: x for name, x in of_new.items()}
        return metrics | others

    def _evaluate_apart(self, stage: Stage, plan: Plan) -> dict[str, float]:
        """Measure the events of new nodes in a separate pass, which leaves no trace."""
        if plan not in self._apart:  # made once: its captured memory outlives a pass
            self._apart[plan] = self._new_nodes_plan(stage, plan.draws.negatives)
        alone = self._apart[plan]
        if alone is None:
            return {INDUCTIVE + "num_events": 0}
        state = self.model.state
        before = None if state is None else state.state_dict()
        metrics, _ = self._measured(alone, lambda scored: None)
        self._load_state(before)
        return {INDUCTIVE + name: x for name, x in metrics.items()}

    def _measured(
        self, plan: Plan, on_batch: Callable[[Scored], None]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the metrics of a plan's events, and of those that touch a new node."""
        exact = self.config.draws.exact
        every, of_new = (LinkMetrics(self._metrics, exact=exact) for _ in range(2))
        new: list[tuple[Tensor, Tensor]] = []

        def add_new(size: int) -> None:
            """Add new nodes' events in batches, once there are at least `size`."""
            while sum(len(positive) for positive, _ in new) >= size:
                positive, negative = (torch.cat(column) for column in zip(*new, strict=True))
                first, rest = slice(plan.batch_size), slice(plan.batch_size, None)
                of_new.add(positive[first], negative[first])
                new[:] = [(positive[rest], negative[rest])] if len(positive[rest]) else []

        for scored in self._scored(plan):
            positive, negative = scored.positive, scored.negative
            every.add(positive, negative)
            is_new = self.split.touches_new.index_select(0, scored.place.host.eid)
            new.append((positive[is_new], negative[is_new]))
            add_new(plan.batch_size)
            on_batch(scored)
        add_new(1)
        results = ({**each.result(), "num_events": each.num_events} for each in (every, of_new))
        return next(results), next(results)

    def _scored(self, plan: Plan) -> Iterator[Scored]:
        """Predict each batch, then store it; yield its scores once they are on the host.

        Batches with many fixed negatives, or all destinations, are predicted in parts, unless the
        model chooses by ranks among them all. Ranks that do not receive the scores yield nothing.
        """
        c, learner = self.config, self._learner
        is_whole = self.model.choose_by == "mrr" and isinstance(self.model.state, Choice)
        made: Iterable[StepBatch] | None = None
        parts: Iterable[BatchPart | None] = repeat(None)
        negatives = plan.draws.negatives
        is_among_all = isinstance(negatives, NegativeSampler) and negatives.among_all
        num_pairs = plan.batch_size * (1 + negatives.num)
        is_many = isinstance(negatives, FixedNegatives) and num_pairs > c.max_pairs
        if is_among_all or (is_many and not is_whole):
            with_state = self.model.state is not None and not is_whole
            most = sys.maxsize if is_whole else c.max_pairs
            parts = every = plan.parts(most, with_storing=with_state)
            made = self._loaded(plan, ((0, part.index, part) for part in every))
        results: Results[tuple[BatchPlace, bool]] = learner.new_results()
        found: list[Scored] = []

        def known(*, everything: bool = False) -> Iterator[Scored]:
            """Yield the batches all of whose parts have reached the host."""
            for (place, is_last), values, is_finite in results.take(everything=everything):
                if not is_finite:
                    learner.check_late(place, values)
                negative, mask = values["negative"], place.host.negative_mask
                negative = negative if mask is None else negative.where(mask, -torch.inf)
                found.append(Scored(place, values["positive"], negative, values.get("classes")))
                if is_last:
                    yield _joined(found)
                    found.clear()

        made = self._batches(plan, 0) if made is None else made
        batches = self._attached(plan.graph, made)
        for batch, part in zip(batches, parts, strict=False):
            with self.model.lock:
                if part is not None and part.is_stored:
                    learner.commit(batch, None)
                    continue
                if part is None or is_whole:
                    values, flat = learner.take(batch, None)
                else:
                    values, flat = learner.predict(batch).named(), None
            if values:
                results.put((BatchPlace.of(batch), part is None or part.is_last), values, flat)
            yield from known()
        yield from known(everything=True)

    def _load_state(self, state: dict[str, Tensor] | None) -> None:
        if self.model.state is not None and state is not None:
            with self.model.lock:
                self.model.state.load_state_dict(state)

    def _summary(self, best: BestEpoch) -> dict[str, Any]:
        c, totals, graph = self.config, self._progress.totals, self.graph
        tied = graph.log.tied_share(graph.num_events)
        is_published = (c.val_ratio, c.test_ratio, self._fixed) == (0.15, 0.15, None)
        learned = negatives_learned(self.model, c) if self._learner.learns else None
        if learned is not None and self._own_negatives is not None:
            learned = f"own:{self._own_negatives.num}"
        num_destinations = None
        if c.mrr_negatives == "all" and c.fixed_negatives is None:
            pairs = self._val_plan.draws.pairs_at(graph.num_events).upto(graph.num_events)
            num_destinations = pairs.num_destinations(graph.num_events)
        summary: dict[str, Any] = {
            "protocol": c.protocol or ("offline 70/15/15" if is_published else "offline"),
            "protocol_line": offline_line(c, tied, self._select, learned, num_destinations),
            "tied_share": tied,
            "visibility": c.visibility,
            "test_negatives": "fixed" if c.fixed_negatives else c.test_negatives[0],
            "seed": c.seed,
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
            **self._counts.figures(graph.num_events),
            "num_events": graph.num_events,
            "num_nodes": graph.num_nodes,
            "train.num_events": len(self.split.train),
            "best_epoch": best.epoch,
            "num_epochs": totals.epochs,
            "epoch_seconds": totals.seconds / totals.epochs,
            "events_per_second": totals.events / totals.seconds,
            "overhead_share": 1 - totals.compute_seconds / totals.seconds,
        }
        if learned is not None:
            summary["negatives"] = learned
        if num_destinations is not None:
            summary["mrr_destinations"] = num_destinations
        return summary if self.reuse is None else summary | self.reuse.figures()


def prefix_metrics(part: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Prefix each metric's name with the part: `test.ap`, `inductive.test.ap`."""
    return {
        f"{INDUCTIVE * name.startswith(INDUCTIVE)}{part}.{name.removeprefix(INDUCTIVE)}": value
        for name, value in metrics.items()
    }


def _joined(parts: Sequence[Scored]) -> Scored:
    if len(parts) == 1:
        return parts[0]
    places, positive, negative, _ = zip(*parts, strict=True)
    hosts = [place.host for place in places]
    eid, src, dst, t = (torch.cat([getattr(host, name) for host in hosts]) for name in _COLUMNS)
    host = HostEvents(eid, src, dst, t, hosts[0].begin, hosts[0].end)
    place = replace(places[0], num_new=len(host.eid), host=host)
    return Scored(place, torch.cat(positive), torch.cat(negative))


def _check(model: TemporalModel, config: OfflineConfig, task: LabelTask | None) -> None:
    if isinstance(model.state, SpreadState):
        raise ValueError(
            "a sharded memory is for a ContinualTrainer; leave the model's state as it is"
        )
    if config.eval_neighbors is not None:
        try:
            model.check_fanouts(config.eval_neighbors)
        except ValueError as error:
            raise ValueError(f"eval_neighbors: {error}") from None
    if task is None:
        return
    are_set = {
        "slices": config.slices > 1,
        "fixed_negatives": config.fixed_negatives is not None,
        'mrr_negatives="all"': config.mrr_negatives == "all",
        "reuse": config.reuse.staleness > 0,
    }
    for name in (name for name, is_set in are_set.items() if is_set):
        raise ValueError(f"a task requires whole batches: leave {name} out")
