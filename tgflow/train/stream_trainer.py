"""Base class of trainers over a stream of micro-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import torch

from tgflow.base.describe import described
from tgflow.base.locks import OneThread
from tgflow.base.peers import Peers
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.base.units import seconds_in
from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.typed import read_natural
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, Share, StepBatch
from tgflow.graph.event_stream import EventStream
from tgflow.graph.events import (
    MICRO_BATCH_END,
    NO_EVENT,
    NO_LABEL,
    EventBatch,
    LateLabels,
    as_column,
)
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import Added
from tgflow.graph.node_rows import check_ids
from tgflow.graph.stream_state import SpreadState
from tgflow.nn.model import TemporalModel, has_parameters
from tgflow.plan.assemble import check_unplanned
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.device_preparer import Slots
from tgflow.plan.in_order import Task
from tgflow.plan.loader import PREFETCH_BATCHES, BatchSource, Loader, joined_shares, sliced_tasks
from tgflow.plan.negatives import PairHistory
from tgflow.ranks.control import Order, RankControl
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.observe import Callback, Callbacks, StepRecord
from tgflow.train.plans import MicroBatcher, MicroBatchPlans, loader_threads, micro_batch_plans
from tgflow.train.progress import Progress
from tgflow.train.stepper import MicroBatch, Stepper

if TYPE_CHECKING:
    from tgflow.train.tasks.labels import EventLabels, LabelTask


@described
class StreamTrainer(ABC):
    """Base class of trainers over a stream, which read it micro-batch by micro-batch.

    A subclass provides its models as `Stepper`s, and defines their batches and steps.
    """

    control: RankControl | None = None
    """Control channel to the other ranks; None for trainers of one process."""

    def __init__(
        self,
        graph: TemporalGraph,
        config: ContinualConfig | None,
        execution: ExecutionConfig | None,
        device: torch.device,
        peers: Peers | None = None,
        task: LabelTask | None = None,
    ) -> None:
        check_unplanned(graph)
        if graph.shard.world > 1 and (graph.gpu is not None or device.type != "cpu"):
            raise ValueError(
                f"a sharded graph is for models on the CPU, and this one is on {device}; leave out "
                "TemporalGraph(shard=)"
            )
        self._peers: Peers = Peers() if peers is None else peers
        self.config = ContinualConfig() if config is None else config
        self.execution = ExecutionConfig() if execution is None else execution
        schedule = SliceSchedule(self.config.slices, self._peers.world)
        self._wanted = schedule.slices_of(self._peers.rank)
        self.graph = graph
        self.labels = None if task is None else task.labels_of(graph)
        """Labels of the graph's events, with a task."""
        self.position = graph.num_events
        """Events predicted, learned and stored (or history); the graph's others are pending."""
        self.ids: NodeIds | None = None
        """Node ids of the first stream; later streams continue them."""
        self.device = device
        self.stream = EventStream()
        """The latest stream."""
        self.stream_start = self.position
        """Events before those of the latest stream."""
        self._pairs = PairHistory(graph.log, shard=graph.shard)
        self._catches_up = False
        self._replay_from = 0
        """First log position that may be replayed: the model's state before it is gone."""
        self._segment_start = self.position
        self._index = 0
        self._ready = deque[StepRecord]()
        """Records not yet yielded."""
        self._counted: dict[CountHistory, None] = {}
        """Counts of the groups of models."""
        self._slots = Slots()
        """Captured memory of micro-batches on a GPU."""
        self._running = OneThread(
            "two threads that take steps of one trainer would learn the same events twice"
        )
        self._latest: object = None
        """Identifies the latest call of `steps`."""

    def _facts(self) -> dict[str, object]:
        progress = self.progress
        return {
            "position": self.position,
            "num_steps": progress.num_steps,
            **progress.running.means(),
            "graph": self.graph,
        }

    @property
    @abstractmethod
    def _steppers(self) -> Sequence[Stepper]:
        """The models that learn, in order; the first one has the progress."""

    @property
    def progress(self) -> Progress:
        return self._steppers[0].progress

    @property
    def learns(self) -> bool:
        """Whether the first model has parameters, so that its loss is one."""
        return has_parameters(self._steppers[0].model)

    @property
    def num_pending(self) -> int:
        """Micro-batches that were learned but whose records were not yielded."""
        return max(each.num_pending for each in self._steppers)

    @property
    def is_whole(self) -> bool:
        """Whether no micro-batch was learned in part, as by `steps` that failed within one.

        Only then is a `checkpoint` a state of an undisturbed training.
        """
        return not any(each.learner.has_changed for each in self._steppers)

    @property
    def memory_rows(self) -> int | None:
        """Rows of node memory held; None without any."""
        rows = [getattr(each.model.state, "num_rows", None) for each in self._steppers]
        return sum(held) if (held := [num for num in rows if num is not None]) else None

    @property
    def num_forgotten(self) -> int:
        """Nodes whose memory was freed, as all their events are before the horizon."""
        return max(getattr(each.model.state, "num_forgotten", 0) for each in self._steppers)

    def memory_parts(self) -> dict[str, int]:
        """Return the bytes of the parts in host memory that grow. Any thread may call it."""
        graph, parts = self.graph, {"counts": sum(each.nbytes for each in tuple(self._counted))}
        parts["events"] = graph.log.nbytes
        tables = [each for each in (graph.edge_x, graph.node_x) if each is not None]
        parts["features"] = sum(each.nbytes for each in tables if each.placement != "device")
        if self.device.type == "cpu":
            widths = [getattr(each.model.state, "row_bytes", 0) for each in self._steppers]
            parts["node memory"] = (self.memory_rows or 0) * max(widths, default=0)
            parts["neighbors"] = graph.stats().bytes
        return parts

    @property
    def spread_state(self) -> SpreadState | None:
        """The model's state, if each rank holds that of its own nodes."""
        return None

    @property
    def is_spread(self) -> bool:
        """Whether saved state is sharded over ranks, so that all ranks save together."""
        return self.spread_state is not None

    @property
    def num_batches(self) -> int:
        """Batches prepared for each micro-batch: one to predict, and one for each update."""
        return 1 + max(each.num_updates for each in self._steppers)

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Return the metrics so far, flat or nested, JSON-serializable."""

    @abstractmethod
    def save_to(self, writer: Checkpoint) -> None:
        """Save all that is needed to continue with the same bits.

        Later training does not change the saved state. Synchronizes with the device, as it includes
        the metrics of all learned events.
        """

    @abstractmethod
    def _source(self) -> BatchSource:
        """Return the source of batches."""

    @abstractmethod
    def _step(self, batch: StepBatch, following: Iterator[StepBatch]) -> StepBatch:
        """Process one micro-batch, whose other batches come next; return the last one of them."""

    @abstractmethod
    def _collect(self, *, everything: bool) -> None:
        """Make records of values that have reached the host, also if that raises."""

    def run(
        self,
        stream: Any,
        observer: Callback | Sequence[Callback] | None = None,
        *,
        progress: bool | None = None,
    ) -> dict[str, Any]:
        """Learn from all of `stream` and return `result()`.

        Args:
            stream: Batches of any size, in order; read as needed, from another thread. With several
                ranks only the stream of rank 0 is read. What `tgflow.open_stream` takes, such as a
                path, a data frame or a tuple of columns, is opened, with times in the graph's unit.
            observer: A callback for each step, such as a `tg.callbacks.TensorBoard`; or several.
            progress: Whether rank 0 shows a bar, on stderr; None: on a terminal, or in a notebook.

        Raises:
            TrainingDiverged: If a loss or score is not finite.
            BatchError: If a batch cannot be prepared.
            LeaderFailed: On ranks other than 0, if reading the stream failed on rank 0.
            RuntimeError: If another thread is within `run` or `steps`.
            ValueError: If the stream has another time unit than the graph, or ids that do not
                continue those of earlier streams, or the graph has rows of nodes that the stream
                has not numbered yet. Errors of either are passed on, such as for a decreasing time.
        """
        from tgflow.ranks.broadcast import read_by_rank_0
        from tgflow.train.progress_bar import progress_bar

        with self._running.working():
            stream = self._opened(stream)
            callbacks, c = Callbacks(observer), self.config
            wanted = self._peers.rank == 0 and progress
            bar = progress_bar(wanted, stream, c.metric_names, learns=self.learns)
            read = read_by_rank_0(self._peers, stream, c.batch_size, self.graph.time_unit)
            with callbacks.also(bar), read as events:
                for record in self.steps(events):
                    callbacks.notify("on_step", record)
            return self.result()

    def steps(self, stream: Any) -> Iterator[StepRecord]:
        """Do the same as `run`, step by step; between steps a checkpoint may be taken.

        On a GPU records are delayed by up to 16 micro-batches, and all are yielded before this
        returns. If left early, up to 4 micro-batches of the stream stay in the graph, on a GPU 7
        more: they come first when this is called again.

        Where the stream yields `MICRO_BATCH_END`, a micro-batch ends before it is
        full, as at the end of the stream. Several ranks need the same stream.

        Other threads may query the model meanwhile (`tgflow.Inference`), which changes no bit; a
        second thread that takes steps is refused, as is an iterator that is continued after a later
        call.
        """
        with self._running.working():
            self._latest = latest = object()
            for record in self._steps_of(stream):
                yield record
                if self._latest is not latest:
                    raise RuntimeError(
                        "steps was called again, which has continued with the events that were "
                        "left: continue that iterator instead of this one"
                    )

    def add_labels(
        self,
        *,
        label: Any,
        eid: Any = None,
        src: Any = None,
        dst: Any = None,
        t: Any = None,
        time: Any = None,
    ) -> Added:
        """Add labels that came after their events; later events see and learn them.

        They are written at the log's end, which is ahead of `position` within `steps`. A checkpoint
        holds those written up to its position: after a resume add the others again. To give their
        place in the stream, let it yield `tgflow.graph.events.LateLabels` instead.

        Args:
            label: Labels, integers `[N]`; None or `NO_LABEL` withdraws one.
            eid: Log positions of their events, `[N]`; or else `src`, `dst` and `t`.
            src: Sources, `[N]`, as in the stream.
            dst: Destinations, `[N]`.
            t: Times of the events in ticks, `[N]`.
            time: Ticks at which the labels came, `[N]` or one; None: the log's last. Events after
                it see them.

        Returns:
            How many were added, corrected another one, or repeated the latest one.

        Raises:
            ValueError: If a row is of no event or of several, or columns are missing; nothing is
                added then.
        """
        log = self.graph.log
        values = [NO_LABEL if x is None else int(x) for x in label]
        if eid is None:
            if src is None or dst is None or t is None:
                raise ValueError("name the events by eid=, or by src=, dst= and t=")
            if self.ids is None:
                src, dst = as_column("src", src), as_column("dst", dst)
            else:
                src, dst = self.ids.find(src, "src"), self.ids.find(dst, "dst")
            eid = log.find(src, dst, as_column("t", t))
        eid = as_column("eid", eid)
        time = log.t_last or 0 if time is None else time
        came = torch.full_like(eid, time) if isinstance(time, int) else as_column("time", time)
        wrong = ((eid < 0) | (eid >= len(log))).nonzero().flatten().tolist()
        if wrong:
            many = eid[wrong[0]] == NO_EVENT - 1
            raise ValueError(
                f"label {wrong[0]} is of {'several events: give eid=' if many else 'no event'}; "
                f"the log has {len(log)} events"
            )
        return log.late.add(LateLabels(eid, as_column("label", values), came), in_stream=False)

    def _steps_of(self, stream: Any) -> Iterator[StepRecord]:
        """Implement `steps`, micro-batches that end early included."""
        stream = self._opened(stream)
        self.graph.check_time_unit(stream.unit)
        check_ids(self.graph.node_x, stream.ids)
        batches, has_ended = iter(stream), False

        def up_to_a_cut() -> Iterator[EventBatch]:
            nonlocal has_ended
            for events in batches:
                if events is MICRO_BATCH_END:
                    return
                yield events
            has_ended = True

        while not has_ended:
            yield from self._steps(up_to_a_cut())

    def _opened(self, data: Any) -> EventStream:
        """Return `data` as a stream, which continues the ids of the first one or has no others."""
        from tgflow.streams.source import as_source

        is_new = self.ids is None  # without a word of the graph, it is as the file declares
        bipartite = True if is_new and self.graph.direction == "bipartite" else None
        unit = None if self.graph.time_unit == "tick" else self.graph.time_unit
        target = self.config.task.target
        label = {} if target is None else {"label": target}
        stream = as_source(data, ids=self.ids, bipartite=bipartite, time_unit=unit, **label)
        ids, source = stream.ids, stream.source
        is_plain = type(stream) is EventStream
        is_same = is_plain and type(self.stream) is EventStream and source is self.stream.source
        if stream is not self.stream and not is_same:
            self.stream, self.stream_start = stream, self.graph.num_events
        if ids is None or ids is self.ids:
            return stream
        if self.ids is None:
            if len(ids) < self.graph.num_nodes:
                raise ValueError(
                    f"the graph has {self.graph.num_nodes} nodes and the stream has ids of "
                    f"{len(ids)}, which would mix up nodes: open it with the ids of the "
                    "previous stream, tg.open_stream(..., ids=before.ids)"
                )
            self.ids = ids
            return stream
        is_file = is_plain and hasattr(source, "first")
        if len(ids) or ids.bipartite != self.ids.bipartite or not is_file:
            raise ValueError(
                "the stream has ids of its own, which would mix up nodes: open it "
                "with those of this trainer, tg.open_stream(..., ids=trainer.ids)"
            )
        source.ids = self.ids  # type: ignore[attr-defined]
        return stream

    def _steps(self, stream: Iterable[EventBatch]) -> Iterator[StepRecord]:
        """Implement `steps` for a stream in which all micro-batches but the last are full."""
        c, num = self.config, self.num_batches
        feeder = MicroBatcher(self.graph, self._segment_start, self._index, c.batch_size, num - 1)
        made = (
            self._asked(feeder, stream)
            if self.graph.shard.world > 1 or self.is_spread
            else self._loaded(feeder.tasks(stream))
        )
        for each in self._steppers:
            each.resume_clocks()
        with closing(made) as batches:
            try:
                for batch in batches:
                    with self._alone():
                        of = self._advance(self._step(batch, batches), feeder)
                        for each in self._steppers:
                            each.finish(of)
                        everything, self._catches_up = self._catches_up, False
                        if self.control is not None:  # all ranks obey with nothing pending
                            everything |= bool(self.control.order & ~Order.HOLD)
                        self._collect(everything=everything)
                    while self._ready:
                        yield self._ready.popleft()
            except Exception:
                yield from self.drain()  # records of earlier steps
                raise
        yield from self.drain()

    def _loaded(self, tasks: Iterator[Task]) -> Any:
        c = self.config
        loader: Any = iter(
            Loader.of_tasks(
                self._source(),
                sliced_tasks(tasks, self._wanted) if c.slices > 1 else tasks,
                num_threads=loader_threads(c, self._peers),
                lookahead=PREFETCH_BATCHES * self.num_batches * len(self._wanted),
                device=self.device,
                captures=self.execution.capture,
                together=self.num_batches * len(self._wanted),
            )
        )
        if c.slices > 1:
            return joined_shares(loader, len(self._wanted))
        return loader if self.labels is None else _attached(self.labels, loader)

    def _asked(self, feeder: MicroBatcher, stream: Iterable[EventBatch]) -> Generator[Share]:
        """Yield the shares of micro-batches, prepared by requests to the owners of nodes."""
        from tgflow.plan import shared_batches
        from tgflow.ranks.broadcast import MOST_BATCHES
        from tgflow.ranks.sharded_counts import ShardedCounts, read_pairs
        from tgflow.ranks.sharded_sampling import ShardedSampler

        c = self.config
        if self.graph.num_events != self.position:
            raise ValueError(
                f"{self.graph.num_events - self.position} events are pending in the graph, as "
                "training was left early, and their number differs between ranks: continue from a "
                "checkpoint"
            )
        plans, gate = self._source(), shared_batches.Barrier(self._peers)
        assert isinstance(plans, MicroBatchPlans)
        sampler, graph, state = plans.predict.draws.sampler, self.graph, self.spread_state
        walk: shared_batches.Walk = shared_batches.walks_here(graph, sampler)
        read = count = None
        if graph.shard.world > 1:
            walk = ShardedSampler(graph, self._peers, sampler).walk
            count = ShardedCounts(plans.predict.draws.counts, self._peers).counted

            def read(since: int, stop: int) -> None:
                read_pairs(self._pairs.at(since), self._peers, stop)

        most = SliceSchedule(c.slices, self._peers.world).most
        ask = None if state is None else state.ask
        preparer = shared_batches.SharePreparer(
            plans.plan_of, walk, self._wanted, most, read, count, ask
        )
        num_threads = 1 if c.num_threads is None else c.num_threads  # it waits for other ranks
        made = shared_batches.shares_by_turns(
            feeder.turns(stream, MOST_BATCHES),
            preparer,
            gate,
            num_threads=num_threads,
            ahead=PREFETCH_BATCHES,
        )
        try:
            with closing(made):
                yield from made
        except GeneratorExit:
            if self.control is not None and self.control.order & (
                Order.STOP | Order.STOP_FOR_MEMORY
            ):  # all ranks stop here
                gate.leave()
            raise

    def _alone(self) -> ExitStack:
        """Hold the locks of all models."""
        with ExitStack() as stack:
            for each in self._steppers:
                stack.enter_context(each.model.lock)
            return stack.pop_all()

    def catch_up(self) -> None:
        """Make `steps` yield pending records before it continues; synchronizes there."""
        self._catches_up = True

    def drain(self) -> Iterator[StepRecord]:
        """Yield the records of micro-batches that `steps` has learned and did not yield.

        Occurs on a GPU only, after `steps` was left early. Synchronizes.
        """
        try:
            self._collect(everything=True)
        finally:  # records before the failure
            while self._ready:
                yield self._ready.popleft()

    def checkpoint(self) -> Checkpoint:
        """Return all that `from_checkpoint` needs to continue with the same bits.

        It holds the events up to `position`: resume the stream from there. Save parts of your own
        to it, such as `Ids`, before you write it. It is a snapshot, so training may go on while
        another thread writes it. Does not draw random numbers or change the trainer. Another thread
        may take it too, between two micro-batches.
        """
        checkpoint = Checkpoint({})
        with self._alone():
            self.save_to(checkpoint)
        return checkpoint

    def _advance(self, batch: StepBatch, feeder: MicroBatcher) -> MicroBatch:
        """Advance past the micro-batch that was just stored; return its place."""
        before = (self.position, self._segment_start, self._index)
        self.position += batch.num_new
        log = self.graph.log
        if log.horizon is not None:
            # Batches that are prepared begin there or later, and figures of labels lag behind.
            num = 0 if self.labels is None else 1 + max(each.num_pending for each in self._steppers)
            position = self.position - num * self.config.batch_size
            states = (each.model.state for each in self._steppers)
            self.graph.forget_outside(min(position, log.read_again), states)
        if batch.num_new < self.config.batch_size:  # the stream has ended in a partial one
            self._segment_start, self._index = self.position, 0
        else:
            self._index += 1
        t = int(batch.host.t[batch.num_new - 1])
        return MicroBatch(
            before=before,
            stop=self.position,
            t=t,
            lag_events=self.graph.backend.position - self.position,
            lag_seconds=seconds_in(log.native.clock - t, self.graph.seconds_per_tick),
            arrived=feeder.arrivals.popleft(),
        )

    def _plans(self, model: TemporalModel, counts: CountHistory) -> MicroBatchPlans:
        self._counted[counts] = None
        return micro_batch_plans(
            self.graph,
            model,
            self.config,
            start=self._segment_start,
            replay_from=self._replay_from,
            negatives=self._steppers[0].own_negatives,
            counts=counts,
            pairs=self._pairs,
            slots=self._slots,
        )

    def _about(self, learned: str | None = None) -> dict[str, Any]:
        """Return how results were measured; `learned`: the negatives that all learn from."""
        from tgflow.train.protocols import continual_line

        c, num = self.config, None
        tied = self.graph.log.tied_share(self.position)
        if c.mrr_negatives == "all":
            pairs = self._pairs.at(self.graph.since(self.position)).upto(self.position)
            num = pairs.num_destinations(self.position)
        return {
            "protocol": c.protocol or "prequential",
            "protocol_line": continual_line(c, tied, learned, num),
            "tied_share": tied,
            "visibility": c.visibility,
            **({} if num is None else {"mrr_destinations": num}),
        }

    def _save_place(self, writer: Checkpoint) -> None:
        writer.note("segment_start", self._segment_start)
        writer.note("index", self._index)
        writer.note("replay_from", self._replay_from)

    def _load_place(self, reader: Checkpoint) -> None:
        """Continue where `_save_place` was called, with micro-batches of the same size."""
        self._segment_start = read_natural(reader.meta, "segment_start", most=self.position)
        self._index = read_natural(reader.meta, "index")


def _attached(labels: EventLabels, batches: Generator[Batch]) -> Generator[Batch]:
    with closing(batches):
        for batch in batches:
            yield labels.attach(batch)
