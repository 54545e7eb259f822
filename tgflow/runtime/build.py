"""Compose the runner of a run, which starts or resumes.

A runner of another kind is another composition: see `tests/runtime/test_runner.py` for one
without ingestion and display.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.console import Console

from tgflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    NoValidCheckpoint,
    RowsLost,
)
from tgflow.choices import Direction
from tgflow.compare.lineup import Lineup
from tgflow.distributed.parcel import broadcast_json
from tgflow.durable.errors import LogCorrupt
from tgflow.durable.log import DurableLog
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.model import TemporalModel
from tgflow.runtime.briefing import Briefing, Lead
from tgflow.runtime.checkpoints import (
    Checkpoints,
    Component,
    LogRetention,
    MicroBatchEnds,
    SavedIngest,
    SavedRecords,
    SavedSettings,
    TimedStream,
    open_ends,
)
from tgflow.runtime.directory import RunDirectory, learn_again
from tgflow.runtime.features import edge_file, features_report
from tgflow.runtime.gpu import CPU, device_figures, graph_gpu
from tgflow.runtime.ingestion import (
    StreamReport,
    make_ingest,
    open_dead_letters,
    open_log,
    order_of,
)
from tgflow.runtime.log import RunLog, library_messages
from tgflow.runtime.loggers import RunLoggers
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.metrics import RunCollector, RunMetrics
from tgflow.runtime.node_features import NodeFeatures
from tgflow.runtime.ranks import lead, make_writer
from tgflow.runtime.restore import (
    Start,
    check_build,
    current_build,
    find_newest,
    make_trainer,
    open_store,
)
from tgflow.runtime.runner import Runner, RunStatus
from tgflow.runtime.saved_run import find_initial, start_of
from tgflow.runtime.scores import SavedScores, open_scores, rows_of
from tgflow.runtime.serving import serve_answers
from tgflow.runtime.stream import FlowControl, PacedStream, SteppedStream
from tgflow.runtime.table_stats import HitRates
from tgflow.runtime.watch import (
    Watchdog,
    make_display,
    memory_guard,
    memory_limit,
    serve_metrics,
)
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.rows.row_batch import PartitionedSource
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import StepRecord
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import parse_seconds


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a run that are not in its directory.

    Args:
        source: Source of events, not started.
        direction: How they become edges.
        model: The model, its first parameters drawn by the seed; or the models to compare.
        threads: CPU threads in use.
        device: Where the model is.
        title: Name of the models for people; None: the name of the model.
        lead: Briefs the other ranks, if there are any.
        cut_at_steps: Whether micro-batches also end where the time changes.
        nodes: Features of the stream's nodes, if there are any.
    """

    source: PartitionedSource
    direction: Direction
    model: TemporalModel | Lineup
    threads: int
    device: torch.device = CPU
    title: str | None = None
    lead: Lead = field(default_factory=Lead)
    cut_at_steps: bool = False
    nodes: NodeFeatures | None = None

    @property
    def node_x_dim(self) -> int:
        """Width of the features of nodes, 0 without any."""
        return 0 if self.nodes is None else self.nodes.dim


def open_runner(
    directory: RunDirectory, inputs: RunInputs, run_log: RunLog, flow: FlowControl, console: Console
) -> Runner:
    """Return the runner of the run in `directory`, at its beginning or newest checkpoint.

    Args:
        directory: Taken.
        inputs: Source, model and other inputs.
        run_log: Gets warnings about settings, checkpoints and the log.
        flow: Stops the stream; may be stopped already.
        console: Shows progress to people.

    Raises:
        ConfigError: If the checkpoint that can be used has other settings than the newest had.
        NoValidCheckpoint: If there were checkpoints and all are damaged.
        LogCorrupt: If the log is damaged.
        CheckpointError: If a checkpoint cannot be trusted, or another tgflow wrote it.
        StrictResume: If bits could differ, and the settings forbid that.
        OSError: If the directory cannot be read or written, or the port for metrics is taken.
    """
    for key in directory.unknown:
        text = f"{directory.path} has a setting that no longer exists, left out: {key}"
        run_log.warning("settings", text)
    try:
        with ExitStack() as opened:
            return _compose(directory, inputs, run_log, flow, console, opened)
    except (NoValidCheckpoint, LogCorrupt, RowsLost) as error:
        raise type(error)(f"{error}; {_way_out(error, directory)}") from None


def _way_out(error: Exception, directory: RunDirectory) -> str:
    """Return the fix for files that are damaged or gone."""
    if isinstance(error, LogCorrupt):
        return "bring files back from a copy, or start over with another --out"
    lost = edge_file(directory.config, directory.path) if isinstance(error, RowsLost) else None
    return f"bring files back from a copy, or {learn_again(directory.path, lost)}"


def _compose(
    directory: RunDirectory,
    inputs: RunInputs,
    run_log: RunLog,
    flow: FlowControl,
    console: Console,
    opened: ExitStack,
) -> Runner:
    """Make the runner; `opened` closes what is open if a later part cannot be made."""
    config, source, peers = directory.config, inputs.source, inputs.lead.peers
    state = _restore(directory, inputs, run_log, opened)
    trainer, store = state.trainer, state.store
    position = trainer.position
    name = inputs.title or config.model.name

    ingest = _open_ingest(directory, source, state, flow, opened)
    stream = PacedStream(
        ingest,
        flow,
        limit=config.stream.limit,
        speed=config.stream.speed,
        learned=position - state.start.history,
    )
    ends = open_ends(directory, position, store)
    if ends is not None:
        opened.callback(_close_quietly, ends.close)
    parts = _open_components(directory, inputs, run_log, state, ingest, stream, ends, opened)
    title = f"{inputs.title or name.upper()} learning from {config.stream.path}"
    names = config.continual.metric_names
    display, shown = make_display(config.operate, title, console, stream.num_events, names, run_log)
    parts.append(shown)

    checkpoints = Checkpoints(
        trainer,
        store,
        make_writer(peers, store, config.ranks.timeout),
        run_log,
        every=config.checkpoint.checkpoint_every,
        every_batches=config.checkpoint.checkpoint_batches,
        parts=parts,
        saved=None if state.newest is None else position,
        shard=peers.shard,
        announce=partial(broadcast_json, peers) if trainer.is_spread else None,
    )
    opened.enter_context(checkpoints)
    opened.enter_context(stream)
    cut = _cut(stream, ends, config.scores.max_wait, trainer, cut_at_steps=inputs.cut_at_steps)
    if inputs.nodes is not None:
        cut = inputs.nodes.along(cut, trainer.graph, ids=ingest.ids)
    leader = lead(peers, cut, trainer, flow, config.ranks.timeout)

    status = RunStatus()
    metrics = RunMetrics(
        status,
        flow,
        trainer,
        ingest,
        checkpoints,
        log=state.log,
        dead_letters=directory.path / "dead-letters",
        memory_limit=memory_limit(config.operate),
        others=leader.sources,
    )
    labels = {"model": name, "stream": source.name, "run": str(directory.path)}
    collector = RunCollector(metrics.metrics, labels)
    serve_metrics(collector, config.operate, run_log, opened)
    serve_answers(directory, trainer, ingest.ids, metrics, collector, run_log, console, opened)
    judge = leader.judge(memory_guard(config.operate))
    watchdog = Watchdog(directory.path / "health.json", metrics, judge, flow, run_log)

    what = f"resumes at event {position:,}" if directory.resumed else "starts"
    text = f"{config.model.name} {what}, stream {source.name}"
    run_log.info("start", text, position=position, **state.build)
    return Runner(
        trainer,
        leader.stream,
        checkpoints,
        resumed=directory.resumed,
        flow=flow,
        orders=leader.orders,
        status=status,
        services=[library_messages(run_log), opened.pop_all(), watchdog, *leader.services],
        display=display,
        components=[*parts, *leader.components],
        warn=lambda text: run_log.warning("checkpoint", text),
    )


def _open_ingest(
    directory: RunDirectory,
    source: PartitionedSource,
    state: _State,
    flow: FlowControl,
    opened: ExitStack,
) -> Ingest:
    """Open dead letters, and ingestion at the trainer's position."""
    config = directory.config
    dead_letters = open_dead_letters(directory)
    opened.callback(_close_quietly, dead_letters.close)
    return make_ingest(
        source,
        state.start,
        state.trainer.position,
        dead_letters,
        state.log,
        flow,
        order=order_of(config.order, sort=config.stream.sort),
        max_bad_ratio=config.checks.max_bad_ratio,
        keep_event_ids=_keeps_event_ids(directory),
    )


def _keeps_event_ids(directory: RunDirectory) -> bool:
    """Whether rows of scores name the stream's event ids."""
    config = directory.config
    return config.scores.to is not None and config.stream.event_id is not None


def _open_components(
    directory: RunDirectory,
    inputs: RunInputs,
    run_log: RunLog,
    state: _State,
    ingest: Ingest,
    stream: PacedStream,
    ends: MicroBatchEnds | None,
    opened: ExitStack,
) -> list[Component]:
    """Return the components of a run but for its display, in the order of their calls."""
    config, trainer, start = directory.config, state.trainer, state.start
    settings = SavedSettings(
        directory,
        state.build,
        inputs.source.name,
        elapsed=start.elapsed,
        history=start.history,
        changed=bool(directory.changed) or start.build != state.build,
    )
    loggers = RunLoggers(config.operate.log_to, directory.path, trainer.position)
    opened.callback(_close_quietly, loggers.close)
    components: list[Component | None] = [
        settings,
        state.records,
        SavedIngest(ingest, trainer, start.state),
        StreamReport(ingest, trainer, directory.files, partial(run_log.warning, "stream")),
        _open_scores(directory, ingest, trainer, state.newest, opened),
        loggers,
        ends,
        None
        if state.log is None or config.checkpoint.keep_log
        else LogRetention(state.log, state.store, run_log),
        RunFigures(trainer.graph, settings, stream, inputs, ingest.ids),
    ]
    return [component for component in components if component is not None]


class _State(NamedTuple):
    """State of a run at its beginning, or at its newest checkpoint."""

    store: CheckpointStore
    newest: Checkpoint | None
    start: Start
    build: dict[str, Any]
    log: DurableLog | None
    trainer: StreamTrainer
    records: SavedRecords


def _restore(
    directory: RunDirectory, inputs: RunInputs, run_log: RunLog, opened: ExitStack
) -> _State:
    """Open checkpoints, log and records, brief the other ranks, and make the trainer."""
    config, source = directory.config, inputs.source
    store = open_store(directory)
    newest = find_newest(store, directory, run_log)
    build = current_build(inputs.threads, inputs.device)
    start = Start.of(newest)
    check_build(start.build, build, strict=config.checkpoint.strict_resume, run_log=run_log)
    directory.accept_settings()
    log = None
    if config.checkpoint.log:
        log = open_log(directory.path / "log", start.state, config.order.idle_timeout, run_log)
        opened.callback(log.close)
    gpu = graph_gpu(config, inputs.device)
    initial = find_initial(config, inputs.lead.peers.world) if newest is None else None
    inputs.lead.brief(
        Briefing.of(
            directory,
            None if newest is None else store.entries()[-1].path,
            unit=source.unit,
            x_dim=source.x_dim,
            node_x_dim=inputs.node_x_dim,
            direction=inputs.direction,
        )
    )
    trainer = make_trainer(
        source,
        inputs.direction,
        inputs.model,
        directory,
        newest,
        run_log,
        gpu,
        inputs.lead.peers,
        initial,
        inputs.node_x_dim,
    )
    if initial is not None:
        start = start_of(initial, trainer.graph, inputs.direction)
    opened.callback(_close_table, trainer.graph)
    records = SavedRecords(directory.files)
    if newest is None:
        records.clear()
    else:
        records.load(newest)
    return _State(store, newest, start, build, log, trainer, records)


def _cut(
    stream: PacedStream,
    ends: MicroBatchEnds | None,
    max_wait: float | str | None,
    trainer: StreamTrainer,
    *,
    cut_at_steps: bool,
) -> Iterable[EventBatch]:
    """Return the stream cut into micro-batches."""
    cut: Iterable[EventBatch] = stream
    if ends is not None and max_wait is not None:
        cut = TimedStream(
            stream,
            ends,
            position=trainer.position,
            batch_size=trainer.config.batch_size,
            max_wait=parse_seconds(max_wait),
        )
    return SteppedStream(cut) if cut_at_steps else cut


class RunFigures(Component):
    """Adds hit rates, elapsed time, memory and progress to records, and reports on features.

    Args:
        graph: With the features.
        settings: Counts the elapsed seconds.
        stream: Knows how many events there will be.
        inputs: Device and node features.
        ids: Of the stream.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        settings: SavedSettings,
        stream: PacedStream,
        inputs: RunInputs,
        ids: NodeIds,
    ) -> None:
        self._graph, self._settings, self._stream = graph, settings, stream
        self._device, self._nodes, self._ids = inputs.device, inputs.nodes, ids
        self._rates = HitRates(graph)

    def figures(self, step: StepRecord) -> Mapping[str, Any]:
        """Return the figures of a record that are not the trainer's."""
        share = self._stream.share(step.stop)
        return {
            **self._rates.lately(),
            "elapsed": self._settings.elapsed,
            "rss_bytes": rss_bytes(),
            **device_figures(self._device),
            **({} if share is None else {"progress": share}),
        }

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Return `features`: a sentence about each feature table."""
        return {"features": features_report(self._graph, self._nodes, self._ids)}


def _open_scores(
    directory: RunDirectory,
    ingest: Ingest,
    trainer: StreamTrainer,
    checkpoint: Checkpoint | None,
    opened: ExitStack,
) -> SavedScores | None:
    """Write the scores of the trainer to the place in the settings; None without one."""
    if not isinstance(trainer, ContinualTrainer) or trainer.scorer is None:
        return None
    config = directory.config
    rows = rows_of(
        ingest,
        config.stream.unit,
        keep_event_ids=_keeps_event_ids(directory),
        says_labels=trainer.scorer.says_labels,
        has_names=config.task.classes not in (None, 2),
    )
    scores = open_scores(directory, rows, trainer, checkpoint)
    if scores is not None:
        opened.callback(_close_quietly, scores.close)
        trainer.scorer.hear = scores.write
    return scores


def _close_table(graph: TemporalGraph) -> None:
    if graph.edge_x is not None:
        _close_quietly(graph.edge_x.close)


def _close_quietly(close: Callable[[], None]) -> None:
    """Close a part, ignoring disk errors: another error ends the run already."""
    with suppress(OSError):
        close()
