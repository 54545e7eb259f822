"""Compose the runner of a run, new or resumed: of rank 0, and of a follower."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from tgflow.checkpoint import CheckpointError, Component, NoValidCheckpoint, RowsLost
from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.checkpoint.sections import Ids
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.ranks.broadcast import Feed
from tgflow.ranks.parcel import broadcast_json
from tgflow.report.label_figures import figure_name
from tgflow.run import monitoring as watch
from tgflow.run.checkpoints import Checkpoints, SavedRecords, SavedSettings
from tgflow.run.config import flat
from tgflow.run.context import RunContext
from tgflow.run.directory import learn_again
from tgflow.run.features import EdgeRows, HitRates, edge_file, features_report
from tgflow.run.followers import FollowedSaves, FollowedStream, RankGuard, make_writer, send_run
from tgflow.run.forget import requested
from tgflow.run.gpu import device_figures
from tgflow.run.ingestion import (
    SavedIngest,
    close_quietly,
    load_ingest,
    max_wait_of,
    open_ingest,
    open_log,
    order_of,
)
from tgflow.run.log import library_messages
from tgflow.run.loggers import RunLogger
from tgflow.run.machine import rss_bytes
from tgflow.run.metrics import RunCollector, RunMetrics, lag_figures, open_exporter, rank_report
from tgflow.run.micro_batch_ends import ENDS_FILE, MicroBatchEnds
from tgflow.run.outlook import Outlook, levels_of
from tgflow.run.posted_labels import PostedLabels, label_token
from tgflow.run.restore import current_build, make_trainer, open_newest
from tgflow.run.runner import Runner, RunStatus
from tgflow.run.saved import find_initial, misfit, start_of
from tgflow.run.scores import open_alerts, open_scores
from tgflow.run.serving import FramePublisher, Replicas, listed_hosts
from tgflow.run.stream import MemoryGuard
from tgflow.serve.endpoint import Endpoint
from tgflow.streams.decorators import PacedStream, SteppedStream, TimedStream
from tgflow.streams.files.reader import FileSource, is_pipe
from tgflow.streams.ingest.config import BEFORE_ALL
from tgflow.streams.transports import scheme_of
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import Callback, StepRecord


def open_runner(run: RunContext) -> Runner:
    """Return the runner of a run, at its beginning or newest checkpoint."""
    for key in run.directory.unknown:
        text = f"{run.path} has a setting that no longer exists, ignored: {key}"
        run.run_log.warning("settings", text)
    try:
        with ExitStack() as opened:  # closes what is open already if a later part fails
            return _open(run, opened)
    except LogCorrupt as error:
        way_out = "bring files back from a copy, or start over with another --out"
        raise type(error)(f"{error}; {way_out}") from None
    except (NoValidCheckpoint, RowsLost) as error:
        lost = None
        if isinstance(error, RowsLost):
            lost = edge_file(run.config.placement, run.config.tables.edge_path, run.path)
        way_out = f"bring files back from a copy, or {learn_again(run.path, lost)}"
        raise type(error)(f"{error}; {way_out}") from None


def open_follower(run: RunContext) -> Runner:
    """Return the runner of a rank other than 0, which repeats the steps of rank 0."""
    peers, flow, run_log = run.peers, run.flow, run.run_log
    followed = FollowedStream(peers, run.unit, run.x_dim, request=flow.request)
    trainer = make_trainer(run)
    guard = MemoryGuard(run.config.operate.memory_bytes, watch.GRACE_SECONDS)
    memory = watch.repeating(partial(watch.watch_memory, guard, flow, run_log))
    saves = FollowedSaves(peers, trainer, run.path / "checkpoints")
    run_log.info("start", f"rank {peers.rank} follows from event {trainer.position:,}")
    return Runner(
        trainer,
        followed,
        saves,
        resumed=run.directory.resumed,
        flow=flow,
        control=trainer.control,
        services=[library_messages(run_log), saves, followed, memory],
        warn=lambda text: run_log.warning("checkpoint", text),
        memory_limit=run.config.operate.memory_bytes,
    )


def _open(run: RunContext, opened: ExitStack) -> Runner:
    """Open the parts of a run in order: state, components, checkpoints, stream, monitoring."""
    _open_state(run, opened)
    position, flow, run_log = run.trainer.position, run.flow, run.run_log
    control = run.trainer.control if run.peers.world > 1 else None
    components: list[Component] = []
    for make in COMPONENTS:
        if (component := make(run)) is not None:
            opened.callback(close_quietly, component)
            components.append(component)
    checkpoints = Checkpoints(
        run.trainer,
        run.store,
        make_writer(run.peers, run.store),
        run_log,
        run.config.checkpoint,
        components=components,
        saved=None if run.newest is None else position,
        shard=run.peers.shard,
        announce=partial(broadcast_json, run.peers) if run.trainer.is_spread else None,
        is_asked=(lambda: False) if run.publisher is None else run.publisher.is_asked,
    )
    opened.enter_context(checkpoints)
    opened.enter_context(run.stream)
    files = (run.config.scores.to, run.config.tables.edge_path)
    folders = [Path(each).parent for each in files if each and not scheme_of(each)]
    status, operate, batches = RunStatus(), run.config.operate, _micro_batches(run)
    outlook = Outlook(levels_of([run.path, *folders], operate.memory_bytes, control))
    metrics = RunMetrics(run, status, checkpoints, outlook)
    _export(run, metrics, opened)
    if run.publisher is not None:
        if checkpoints.saved != position:
            checkpoints.take()  # replicas start from it
        _serve(run, run.publisher)
    guard, feeds = MemoryGuard(operate.memory_bytes, watch.GRACE_SECONDS), []
    if control is not None:
        guard = RankGuard(operate.memory_bytes, watch.GRACE_SECONDS, control, flow)
        batches = feed = Feed(
            run.peers,
            batches,
            run.trainer.config.batch_size,
            lost=flow.stop,
            on_requests=control.set_requests,
            timeout=run.config.ranks.timeout,
        )
        feeds = [feed]
    # nodes are forgotten while no process has the run open, and then it goes on
    may_stop = control is None and not is_pipe(run.config.stream.path)
    must_stop = partial(requested, run.path) if may_stop else lambda: False
    watchdog = watch.watchdog(run.path / "health.json", metrics, guard, flow, run_log, must_stop)
    begins = f"resumes at event {position:,}" if run.directory.resumed else "starts"
    text = f"{run.config.model.name} {begins}, stream {run.source.name}"
    run_log.info("start", text, position=position, **run.build)
    return Runner(
        run.trainer,
        batches,
        checkpoints,
        resumed=run.directory.resumed,
        flow=flow,
        control=control,
        status=status,
        services=[opened.pop_all(), watchdog, *feeds],
        display=next(each.display for each in components if isinstance(each, watch.Shown)),
        components=components,
        warn=lambda text: run_log.warning("checkpoint", text),
        memory_limit=run.config.operate.memory_bytes,
    )


def _open_state(run: RunContext, opened: ExitStack) -> None:
    """Open checkpoints, log, trainer, and ingestion at the trainer's position."""
    directory, run_log = run.directory, run.run_log
    run.build = current_build(run.threads, run.device)
    run.store, run.newest, run.note = open_newest(directory, run.build, run_log)
    if run.newest is not None:
        run.ids, run.state = NodeIds(), load_ingest(run.newest)
        Ids(run.ids).load(run.newest)
    directory.accept_settings()
    if run.config.checkpoint.log:
        order = order_of(run.config.order, run.config.stream, has_log=True)
        run.log = open_log(run.path / "log", run.state, order, run_log, directory.lock)
        opened.callback(run.log.close)
    init_from, initial = run.config.start.init_from, None
    if run.newest is None and init_from is not None:
        initial = find_initial(init_from, run.peers.world)
    send_run(run)
    try:
        run.trainer = trainer = make_trainer(run, initial)
    except CheckpointError as error:
        raise (
            error if initial is None else misfit(str(init_from), flat(run.config), error)
        ) from None
    if initial is not None:
        run.ids, run.state, run.note = start_of(initial, trainer.graph, run.direction)
    if run.state is not None and run.state.log is None and not run.state.counts:  # nothing read
        if not isinstance(run.source, FileSource):
            run.state = replace(run.state, partitions={})
        if run.state.num_released < run.directory.first == trainer.position:
            last, first = trainer.graph.log.t_last, run.directory.first
            last = BEFORE_ALL if last is None else last
            run.state = replace(run.state, num_released=first, watermark=last, last_t=last)
    if trainer.graph.edge_x is not None:
        opened.callback(close_quietly, trainer.graph.edge_x)
    run.ingest = open_ingest(run, opened)
    if trainer.graph.horizon is not None:  # ids alone grow for ever
        run.ingest.ids.hold_index_in(str(run.path))
    if run.types is not None:
        trainer.graph.log.node_types = partial(run.types.of, run.ingest.ids)
    learned = trainer.position - run.note.history
    c = run.config.stream
    run.stream = PacedStream(run.ingest, run.flow, c.speed, c.limit, learned)


def _settings(run: RunContext) -> Component:
    changed = bool(run.directory.changed) or run.note.build != run.build
    run.settings = SavedSettings(run.directory, run.build, run.note, changed=changed)
    return run.settings


def _shown(run: RunContext) -> Component:
    what = run.title or run.config.model.name.upper()
    title, kind = f"{what} learning from {run.config.stream.path}", run.config.task.kind
    keys = [f"{kind}.ap", f"{kind}.accuracy", *run.config.continual.metric_names]
    metrics = {key: figure_name(key, run.config.label_facts) for key in keys}
    console = run.console if run.config.operate.log_format == "text" else None
    total, waits = run.stream.num_events, run.ingest.waits
    learns, log = run.trainer.learns, run.run_log
    return watch.Shown(title, total, metrics, console, log, waits, learns=learns)


def _logger(run: RunContext) -> Component | None:
    if run.config.operate.log_to is None:
        return None
    return RunLogger(run.path, run.trainer.position, run.config.label_facts)


def _ends(run: RunContext) -> Component | None:
    if max_wait_of(run.config.scores.max_wait, run.config.stream) == inf:
        return None
    keep = run.directory.effect == "any_time"  # ends of other settings are not repeated
    path, position = run.path / ENDS_FILE, run.trainer.position
    run.ends = MicroBatchEnds(path, position, keep=keep, store=run.store)
    return run.ends


def _publisher(run: RunContext) -> Component | None:
    if run.config.serve.at is None or not isinstance(run.trainer, ContinualTrainer):
        return None
    run.publisher = FramePublisher(
        run.trainer,
        run.ingest.ids,
        lambda: run.ingest.classes,
        run.config.serve,
        partial(run.run_log.warning, "serve"),
    )
    return run.publisher


def _edge_rows(run: RunContext) -> Component | None:
    table, horizon = run.trainer.graph.edge_x, run.config.graph.horizon_in(run.unit)
    return None if table is None or horizon is None else EdgeRows(table, run.store)


class RunFigures(Component, Callback):
    """Adds hit rates, elapsed time, memory and progress to records; reports features and ranks."""

    def __init__(self, run: RunContext) -> None:
        self._run, self._rates = run, HitRates(run.trainer.graph)
        self._memory, self._measured_at = dict[str, int](), -inf

    def on_step(self, record: StepRecord) -> None:
        run = self._run
        lag = lag_figures(run.ingest, run.trainer)  # of a topic, instead of a share
        is_known = not lag or run.stream.num_events is not None
        share = run.stream.share(record.stop) if is_known else None
        if (now := time.monotonic()) >= self._measured_at + watch.TICK_SECONDS:
            self._measured_at = now
            self._memory = {"rss_bytes": rss_bytes(), **device_figures(run.device)}
        record.further.update(
            self._rates.lately(),
            elapsed=run.settings.elapsed,
            **self._memory,
            **({} if share is None else {"progress": share}),
            **lag,
        )

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        run, graph = self._run, self._run.trainer.graph
        features = features_report(graph, run.nodes, run.ingest.ids)
        return {"features": features, **rank_report(run)}


COMPONENTS: tuple[Callable[[RunContext], Component | None], ...] = (
    RunFigures,
    _settings,
    lambda run: SavedRecords(run.directory.files, run.newest, run.run_log),
    SavedIngest,
    _logger,
    _shown,
    open_alerts,
    open_scores,
    _ends,
    _edge_rows,
    _publisher,
)
"""Factories of the components, called in this order: figures are added before they are written."""


def _micro_batches(run: RunContext) -> Iterable[EventBatch]:
    batches: Iterable[EventBatch] = run.stream
    trainer = run.trainer
    if run.ends is not None:
        size = trainer.config.batch_size
        seconds = max_wait_of(run.config.scores.max_wait, run.config.stream)
        batches = TimedStream(
            batches, trainer.position, size, seconds, run.ends.to_repeat, run.ends.add
        )
    if run.cut_at_steps:
        batches = SteppedStream(batches)
    if run.nodes is not None:
        batches = run.nodes.along(batches, trainer.graph, ids=run.ingest.ids)
    return batches


def _export(run: RunContext, metrics: RunMetrics, opened: ExitStack) -> None:
    c = run.config
    if c.operate.metrics_port is None:
        return
    name = run.title or c.model.name
    labels = {"model": name, "stream": run.source.name, "run": str(run.path)}
    at = Endpoint(c.operate.metrics_host, c.operate.metrics_port)
    collector = RunCollector(metrics.metrics, labels, c.label_facts)
    port = open_exporter(collector, at, listed_hosts(c.serve), opened)
    run.run_log.info("metrics", f"metrics at {at._replace(port=port).url}/metrics", port=port)


def _serve(run: RunContext, publisher: FramePublisher) -> None:
    where, c = run.served_at, run.config
    assert where is not None
    warn, labels = partial(run.run_log.warning, "serve"), None
    if (token := label_token(c.labels)) is not None:
        labels = PostedLabels(token, c.stream, c.checks, run.ingest, c.has_label_ids)
    name, ring = c.model.name, publisher.ring
    replicas = Replicas(run.path, c.serve, name, where, ring, warn, labels=labels)
    replicas.prioritize()  # where all cores are busy, answers come first
    run.lasting.callback(replicas.close)
    url = replicas.endpoint.url
    text = f"answers at {url}, documented at {url}/docs"
    run.run_log.info("serve", text, port=replicas.endpoint.port)
    if run.config.operate.log_format == "text":
        run.console.print(text, markup=False, highlight=False, soft_wrap=True)
