"""Compose the runner of a run, new or resumed: of rank 0, and of a follower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.console import Console

from tgflow.base.choices import Direction
from tgflow.base.peers import Peers
from tgflow.base.units import parse_seconds
from tgflow.checkpoint import Checkpoint, CheckpointStore, NoValidCheckpoint, RowsLost
from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.cuda.device import Device
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.nn.model import TemporalModel
from tgflow.ranks.broadcast import Feed
from tgflow.ranks.parcel import broadcast_json
from tgflow.report.compare.lineup import Lineup
from tgflow.run import monitoring as watch
from tgflow.run.components import (
    ENDS_FILE,
    Checkpoints,
    Component,
    MicroBatchEnds,
    SavedRecords,
    SavedSettings,
    TimedStream,
)
from tgflow.run.directory import RunDirectory, learn_again
from tgflow.run.features import HitRates, edge_file, features_report
from tgflow.run.followers import (
    Briefing,
    FollowedSaves,
    FollowedStream,
    Lead,
    RankGuard,
    make_writer,
)
from tgflow.run.gpu import device_figures, graph_gpu
from tgflow.run.ingestion import (
    DEAD_LETTERS,
    SavedIngest,
    Start,
    close_quietly,
    open_ingest,
    open_log,
)
from tgflow.run.log import RunLog, library_messages
from tgflow.run.loggers import RunLoggers
from tgflow.run.machine import rss_bytes
from tgflow.run.metrics import RunCollector, RunMetrics, open_exporter, rank_report
from tgflow.run.node_features import NodeFeatures
from tgflow.run.node_types import NodeTypes
from tgflow.run.restore import current_build, make_trainer, open_newest
from tgflow.run.runner import Runner, RunStatus
from tgflow.run.saved import find_initial, start_of
from tgflow.run.scores import open_scores
from tgflow.run.serving import FramePublisher, Replicas, check_serving, listed_hosts
from tgflow.run.stream import FlowControl, MemoryGuard, PacedStream, SteppedStream
from tgflow.run.uploads import Uploads
from tgflow.serve.endpoint import Endpoint
from tgflow.streams.rows.row_batch import PartitionedSource
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import StepRecord
from tgflow.train.reducer import RankControl
from tgflow.train.stream_trainer import StreamTrainer


class LiveInputs(NamedTuple):
    """Source, device and features of a run that learns from a stream."""

    source: PartitionedSource
    """Not started."""
    direction: Direction
    device: torch.device
    threads: int
    nodes: NodeFeatures | None
    types: NodeTypes | None


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a run that are not in its directory."""

    live: LiveInputs
    model: TemporalModel | Lineup
    """The model, with parameters initialized by the seed; or the models to compare."""
    title: str | None = None
    """Display name of the models; None: the name of the model."""
    lead: Lead = field(default_factory=Lead)
    """Broadcasts the briefing to the other ranks, if there are any."""
    cut_at_steps: bool = False
    """Whether micro-batches also end where the time changes."""
    lasting: ExitStack = field(default_factory=ExitStack)
    """Closes the replicas of a served run, some time after the end of the stream."""


def open_runner(
    directory: RunDirectory, inputs: RunInputs, run_log: RunLog, flow: FlowControl, console: Console
) -> Runner:
    """Return the runner of the run in `directory`, at its beginning or newest checkpoint."""
    for key in directory.unknown:
        text = f"{directory.path} has a setting that no longer exists, ignored: {key}"
        run_log.warning("settings", text)
    try:
        with ExitStack() as opened:
            return _compose(directory, inputs, run_log, flow, console, opened)
    except LogCorrupt as error:
        way_out = "bring files back from a copy, or start over with another --out"
        raise type(error)(f"{error}; {way_out}") from None
    except (NoValidCheckpoint, RowsLost) as error:
        is_lost = isinstance(error, RowsLost)
        lost = edge_file(directory.config, directory.path) if is_lost else None
        way_out = f"bring files back from a copy, or {learn_again(directory.path, lost)}"
        raise type(error)(f"{error}; {way_out}") from None


def _compose(
    directory: RunDirectory,
    inputs: RunInputs,
    run_log: RunLog,
    flow: FlowControl,
    console: Console,
    opened: ExitStack,
) -> Runner:
    """Make the runner; `opened` closes the parts already open if a later one fails."""
    config, path, live, peers = directory.config, directory.path, inputs.live, inputs.lead.peers
    source, name = live.source, inputs.title or config.model.name

    # the state: checkpoints, log, trainer, ingestion at the trainer's position
    build = current_build(live.threads, live.device)
    store, newest, start = open_newest(directory, build, run_log)
    changed = bool(directory.changed) or start.run.build != build
    directory.accept_settings()
    log = None
    if config.checkpoint.log:
        idle_timeout = config.order.idle_timeout
        log = open_log(path / "log", start.state, idle_timeout, run_log, directory.lock)
        opened.callback(log.close)
    trainer, start = _make_trainer(directory, inputs, store, newest, start, run_log)
    if trainer.graph.edge_x is not None:
        opened.callback(close_quietly, trainer.graph.edge_x)
    position, control = trainer.position, trainer.control if peers.world > 1 else None
    ingest = open_ingest(directory, source, start, position, log, flow, opened)
    if live.types is not None:
        trainer.graph.log.node_types = partial(live.types.of, ingest.ids)
    stream = PacedStream(ingest, flow, config.stream, learned=position - start.run.history)

    # the components, in call order
    settings = SavedSettings(
        config, build, elapsed=start.run.elapsed, history=start.run.history, changed=changed
    )
    what = f"{inputs.title or config.model.name.upper()} learning from {config.stream.path}"
    shown = watch.Shown(config, what, stream.num_events, console, run_log)
    components: list[Component] = [
        settings,
        SavedRecords(directory.files, newest, run_log),
        SavedIngest(ingest, trainer, start.state, directory, store, log, run_log),
        RunLoggers(config.operate.log_to, path, position),
        RunFigures(trainer, settings, stream, live, ingest.ids, control),
        shown,
    ]
    uploads: list[Component] = []
    if config.store.url is not None:
        uploads = [Uploads(directory, store, run_log)]
        opened.callback(close_quietly, uploads[0])
    if (scores := open_scores(directory, ingest, trainer, newest)) is not None:
        components.append(scores)

    # the stream: split into micro-batches, with node features
    batches: Iterable[EventBatch] = stream
    if config.scores.max_wait is not None:
        keep = directory.effect == "any_time"  # ends of other settings are not repeated
        ends = MicroBatchEnds(path / ENDS_FILE, position, keep=keep, store=store)
        components.append(ends)
        max_wait = parse_seconds(config.scores.max_wait)
        batches = TimedStream(batches, ends, position, trainer.config.batch_size, max_wait)
    if inputs.cut_at_steps:
        batches = SteppedStream(batches)
    if live.nodes is not None:
        batches = live.nodes.along(batches, trainer.graph, ids=ingest.ids)

    where, publisher = check_serving(config.serve), None
    warn_of_serving = partial(run_log.warning, "serve")
    if where is not None and isinstance(trainer, ContinualTrainer):
        publisher = FramePublisher(
            trainer, ingest.ids, lambda: ingest.classes, config.serve, warn_of_serving
        )
        components.append(publisher)
    for component in components:
        opened.callback(close_quietly, component)
    components += uploads  # last, as a checkpoint is sent once all have settled it
    checkpoints = Checkpoints(
        trainer,
        store,
        make_writer(peers, store),
        run_log,
        config.checkpoint,
        parts=components,
        saved=None if newest is None else position,
        shard=peers.shard,
        announce=partial(broadcast_json, peers) if trainer.is_spread else None,
        is_asked=(lambda: False) if publisher is None else publisher.is_asked,
    )
    opened.enter_context(checkpoints)
    opened.enter_context(stream)

    # monitoring
    status, operate = RunStatus(), config.operate
    metrics = RunMetrics(
        status,
        flow,
        trainer,
        ingest,
        checkpoints,
        dead_letters=path / DEAD_LETTERS,
        memory_limit=operate.memory_bytes,
        log=log,
        control=control,
    )
    labels = {"model": name, "stream": source.name, "run": str(path)}
    collector = RunCollector(metrics.metrics, labels)
    if operate.metrics_port is not None:
        at = Endpoint(operate.metrics_host, operate.metrics_port)
        port = open_exporter(collector, at, listed_hosts(config.serve), opened)
        text = f"metrics at {at._replace(port=port).url}/metrics"
        run_log.info("metrics", text, port=port)
    if where is not None and publisher is not None:
        if checkpoints.saved != position:
            checkpoints.take()  # replicas start from it
        replicas = Replicas(
            path,
            config,
            where,
            publisher.ring,
            warn=warn_of_serving,
        )
        replicas.prioritize()  # where all cores are busy, answers come first
        inputs.lasting.callback(replicas.close)
        url = replicas.endpoint.url
        text = f"answers at {url}, documented at {url}/docs"
        run_log.info("serve", text, port=replicas.endpoint.port)
        if operate.log_format == "text":
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    guard, feeds = MemoryGuard(operate.memory_bytes, watch.GRACE_SECONDS), []
    if control is not None:
        guard = RankGuard(operate.memory_bytes, watch.GRACE_SECONDS, control, flow)
        batches = feed = Feed(
            peers,
            batches,
            trainer.config.batch_size,
            lost=flow.stop,
            heard=control.hear,
            timeout=config.ranks.timeout,
        )
        feeds = [feed]
    watchdog = watch.watchdog(path / "health.json", metrics, guard, flow, run_log)

    begins = f"resumes at event {position:,}" if directory.resumed else "starts"
    text = f"{config.model.name} {begins}, stream {source.name}"
    run_log.info("start", text, position=position, **build)
    return Runner(
        trainer,
        batches,
        checkpoints,
        resumed=directory.resumed,
        flow=flow,
        control=control,
        status=status,
        services=[library_messages(run_log), opened.pop_all(), watchdog, *feeds],
        display=shown,
        components=components,
        warn=lambda text: run_log.warning("checkpoint", text),
    )


def _make_trainer(
    directory: RunDirectory,
    inputs: RunInputs,
    store: CheckpointStore,
    newest: Checkpoint | None,
    start: Start,
    run_log: RunLog,
) -> tuple[StreamTrainer, Start]:
    """Brief the other ranks; return the trainer and the start of ingestion."""
    config, live, peers = directory.config, inputs.live, inputs.lead.peers
    initial = find_initial(config, peers.world) if newest is None else None
    briefing = Briefing.of(
        directory,
        None if newest is None else store.entries()[-1].path,
        unit=live.source.unit,
        x_dim=live.source.x_dim,
        node_x_dim=0 if live.nodes is None else live.nodes.dim,
        direction=live.direction,
    )
    inputs.lead.brief(briefing)
    gpu = graph_gpu(config, live.device)
    trainer = make_trainer(directory, inputs.model, briefing, newest, gpu, peers, run_log, initial)
    if initial is not None:
        start = start_of(initial, trainer.graph, live.direction)
    return trainer, start


def open_follower(
    briefing: Briefing,
    peers: Peers,
    model: TemporalModel,
    flow: FlowControl,
    run_log: RunLog,
    gpu: Device | None = None,
) -> Runner:
    """Return the runner of a rank other than 0, which repeats the steps of rank 0."""
    directory, newest = briefing.directory(), briefing.load_checkpoint()
    followed = FollowedStream(peers, briefing.unit, briefing.x_dim, asks=flow.asks)
    trainer = make_trainer(directory, model, briefing, newest, gpu, peers, run_log)
    config = directory.config
    guard = MemoryGuard(config.operate.memory_bytes, watch.GRACE_SECONDS)
    memory = watch.repeating(partial(watch.watch_memory, guard, flow, run_log))
    saves = FollowedSaves(peers, trainer, directory.path / "checkpoints")
    run_log.info("start", f"rank {peers.rank} follows from event {trainer.position:,}")
    return Runner(
        trainer,
        followed,
        saves,
        resumed=directory.resumed,
        flow=flow,
        control=trainer.control,
        services=[library_messages(run_log), saves, followed, memory],
        warn=lambda text: run_log.warning("checkpoint", text),
    )


class RunFigures(Component):
    """Adds hit rates, elapsed time, memory and progress to records; reports features and ranks."""

    def __init__(
        self,
        trainer: StreamTrainer,
        settings: SavedSettings,
        stream: PacedStream,
        live: LiveInputs,
        ids: NodeIds,
        control: RankControl | None,
    ) -> None:
        self._graph, self._settings, self._stream = trainer.graph, settings, stream
        self._live, self._ids, self._control = live, ids, control
        self._rates = HitRates(trainer.graph)

    def figures(self, step: StepRecord) -> Mapping[str, Any]:
        share = self._stream.share(step.stop)
        return {
            **self._rates.lately(),
            "elapsed": self._settings.elapsed,
            "rss_bytes": rss_bytes(),
            **device_figures(self._live.device),
            **({} if share is None else {"progress": share}),
        }

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        features = features_report(self._graph, self._live.nodes, self._ids)
        return {"features": features, **rank_report(self._control)}
