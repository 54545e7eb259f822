"""Restore runs, offline trainings and comparisons from their newest checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Literal

import torch

from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, Component, RowsLost
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.graph import TemporalGraph
from tgflow.graph.tables import DamagedFile, FeatureTable
from tgflow.graph.tables.table import Table
from tgflow.nn import NodeMemory
from tgflow.nn.model import TemporalModel
from tgflow.ranks.memory import ShardedMemory
from tgflow.report.compare.comparison import Comparison
from tgflow.report.compare.offline import OfflineResults
from tgflow.run.checkpoints import Checkpoints, SavedSettings
from tgflow.run.config import ConfigError
from tgflow.run.context import RunContext
from tgflow.run.directory import RunDirectory
from tgflow.run.features import check_unused, edge_file, open_edge_table, scale_of, with_cache
from tgflow.run.gpu import describe_device, execution_config
from tgflow.run.log import RunLog
from tgflow.run.machine import describe
from tgflow.run.records import RunNote, run_note
from tgflow.streams.errors import SourceMismatch
from tgflow.train.continual import ContinualTrainer
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.train.trainer_state import (
    file_of,
    graph_of,
    load_model_before_labels,
    same_file,
    share_rows,
)

BUILD = ("tgflow", "torch", "python", "system")
"""Facts about the machine, besides the threads, that may change a result's last bits."""


class StrictResume(RuntimeError):
    """Raised by `strict_resume` if results could differ in their last bits."""


def current_build(threads: int, device: torch.device) -> dict[str, Any]:
    """Return the facts about this machine that may change a result's last bits."""
    found = describe()
    where = describe_device(device).get("gpu", "cpu")
    return {name: found[name] for name in BUILD} | {"threads": threads, "device": where}


def open_newest(
    directory: RunDirectory, build: dict[str, Any], run_log: RunLog
) -> tuple[CheckpointStore, Checkpoint | None, RunNote]:
    """Return the checkpoints of a run, the one to resume from, and its note; None for a new run.

    Warns if bits could differ from those of the machine that wrote it, or raises `StrictResume`;
    raises `ConfigError` if settings differ in a way that is not allowed.
    """
    c = directory.config.checkpoint
    path, lock = directory.path / "checkpoints", directory.lock
    store = CheckpointStore(path, keep=c.keep, max_bytes=c.most_bytes, lock=lock)
    found = store.newest()
    for problem in store.problems:
        run_log.warning("checkpoint", problem)
    newest, note = None if found is None else found[1], RunNote()
    if newest is not None:
        note = run_note(newest.meta)
        directory.compare(note.settings)
    before = note.build
    differing = [name for name in build if before.get(name, build[name]) != build[name]]
    if differing:
        reasons = "; ".join(f"{name} was {before[name]}, is {build[name]}" for name in differing)
        text = f"{reasons}: results may differ in their last bits from an undisturbed run"
        if c.strict_resume:
            raise StrictResume(f"{text}, and strict_resume is set; restore the build, or unset it")
        run_log.warning("other build", text)
    return store, newest, note


def make_trainer(run: RunContext, initial: Checkpoint | None = None) -> StreamTrainer:
    """Return the trainer of a run, restored from its newest checkpoint.

    A new run starts with the model and the events of `initial`, if given.
    """
    config, model, peers, gpu = run.config, run.model, run.peers, run.gpu
    checkpoint, node_x_dim, shard = run.newest, run.node_x_dim, None
    if peers.world > 1 and isinstance(model, TemporalModel):
        if config.ranks.memory == "sharded" and isinstance(model.state, NodeMemory):
            model.state = ShardedMemory(model.state, peers)
        shard = peers.shard if config.ranks.graph == "sharded" else None
    where: dict[str, Any] = {
        "device": "cpu" if gpu is None else gpu,
        "device_budget": config.graph.device_budget,
        "edge_x": _open_table(run),
        "table": config.graph.table,
        "directory": run.directory.path,
    }
    execution = execution_config(config.model.precision, capture=config.run.capture)
    execution = replace(execution, scratch=str(run.directory.path))
    learning: dict[str, Any] = {"execution": execution}
    if is_one := isinstance(model, TemporalModel):
        learning |= {"peers": peers, "scores": config.scores.are_made}
    make: Any = ContinualTrainer if is_one else Comparison
    kind = config.graph.feature_scale
    if checkpoint is not None:
        _check_widths(run, checkpoint, "")
        keep_model = run.directory.effect != "fixed_model"
        if is_one:
            learning |= {"keep_model": keep_model, "shard": shard}
        if is_one and not keep_model:
            text = "model, optimizer and memory are reset, as allowed"
            run.run_log.warning("other model", text)
        trainer: StreamTrainer = make.from_checkpoint(
            model, checkpoint, config.continual, **learning, **where
        )
        trainer.graph.check_time_unit(run.unit)
        _narrow(trainer.graph, run)
        return trainer
    if initial is not None:
        _check_widths(run, initial, "--init-from, ")
        graph = graph_of(initial, shard=shard, **where)
        graph.check_time_unit(run.unit)
        _narrow(graph, run)
        found = "none" if graph.feature_scale is None else graph.feature_scale.kind
        if (graph.edge_x is not None or graph.node_x is not None) and found != kind:
            raise ConfigError(
                f"--init-from: that run has --feature-scale {found}, this one {kind}; give the same"
            )
    else:
        graph = TemporalGraph(
            run.direction,
            time_unit=run.unit,
            node_x=FeatureTable(node_x_dim) if node_x_dim else None,
            shard=shard,
            feature_scale=scale_of(kind, run.x_dim + node_x_dim),
            horizon=run.config.graph.horizon_in(run.unit),
            **where,
        )
    if initial is not None and isinstance(model, TemporalModel):
        load_model_before_labels(model, initial)
    started: StreamTrainer = make(model, graph, config.continual, **learning)
    return started


def _narrow(graph: TemporalGraph, run: RunContext) -> None:
    """Give a graph the run's horizon, unless it begins before events that were forgotten."""
    held = graph.since(end := graph.num_events)
    graph.log.horizon = run.config.graph.horizon_in(run.unit)
    if (since := graph.since(end)) < held:
        raise ConfigError(
            f"--horizon, --horizon-events: as of event {end:,} they begin at event {since:,}, and "
            f"the run has forgotten those before {held:,}; give the former ones, or shorter ones"
        )


def _check_widths(run: RunContext, checkpoint: Checkpoint, flag: str) -> None:
    columns = "--features, --categorical and --set stream.max_categories"
    for name, of, now, same in (
        ("edge_x", "--features", run.x_dim, columns),
        ("node_x", "--node-features", run.node_x_dim, "--node-features and --node-columns"),
    ):
        noted = read_as(dict[str, Any], checkpoint.meta.get(name, {}), name)
        if (there := read_as(int, noted.get("dim", 0), f"{name}.dim")) != now:
            text = f"those of the run have width {there}, and now {now}; give the same {same}"
            raise ConfigError(f"{flag}{of}: {text}")


def _open_table(run: RunContext) -> Table | None:
    """Return the table of edge features behind its cache; None without features.

    Rows beyond the checkpoint come from log or source again, so they are truncated. Each rank has a
    file of its own; those of the checkpoint that are missing in it come from rank 0.
    """
    c, checkpoint, peers, gpu = run.config, run.newest, run.peers, run.gpu
    placement, t, for_graph = c.placement, c.tables, c.graph.device_budget
    file = edge_file(placement, t.edge_path, run.path, peers.rank)
    opened = partial(open_edge_table, placement, t.edge_budget, run.x_dim, file, gpu, for_graph)
    counted = None if checkpoint is None else file_of(checkpoint.meta, "edge_x")
    if file is not None and not file.exists() and same_file(counted, file):
        raise RowsLost(f"{file} is gone, with the edge features that the checkpoint counts")
    if peers.rank and not run.directory.resumed and file is not None and file.exists():
        raise ConfigError(f"--edge-path: {file} exists already; name another file, or remove it")
    try:
        table = opened()
    except DamagedFile as error:
        if not peers.rank or file is None:
            raise RowsLost(f"the run's edge features cannot be read: {error}") from None
        file.unlink()
        table = opened()
    if table is None:
        return None
    table.keeps_file = not peers.rank  # others receive rows from rank 0 on a resume
    if counted is None or checkpoint is None:
        table.truncate(0)
    elif peers.world > 1 and file is not None:
        share_rows(checkpoint, "edge_x", table, peers)
    return with_cache(t, table, "lru", gpu)


def check_own(directory: RunDirectory) -> None:
    """Refuse a file of edge features that may be another run's, as it would be truncated or moved.

    A run may resume with a file that the settings did not name before if its checkpoint counts rows
    in a file: these are verified there, and nothing is changed if they differ.
    """
    is_new = any(change.key == "tables.edge_path" for change in directory.changed)
    if directory.resumed and not is_new:
        return
    if file_of(directory.newest_meta(), "edge_x") is None:
        check_unused(directory.config.tables.edge_path)


class SavedEvents(Component):
    """Digests of all events and node features of an offline training, which checkpoints lack."""

    def __init__(self, graph: TemporalGraph) -> None:
        self._num = graph.num_events
        events, digest = graph.log.read(0, graph.num_events), hashlib.sha256()
        for column in (events.src, events.dst, events.t):
            digest.update(column.numpy().data)
        self._digest, self._of_nodes = digest.hexdigest(), None
        if graph.node_x is not None:
            rows = graph.node_x.read(0, len(graph.node_x)).contiguous().numpy()
            self._of_nodes = hashlib.sha256(rows.data).hexdigest()

    def check(self, meta: Mapping[str, Any], directory: RunDirectory) -> None:
        """Raise SourceMismatch if the checkpoint belongs to other events or node features."""
        num = read_natural(meta, "position")
        digest = read_as(str, meta.get("events_sha256"), "events_sha256")
        c, started = directory.config, f"than when {directory.path} was started"
        if (num, digest) != (self._num, self._digest):
            text = f"it has other events {started} ({num:,} then, {self._num:,} now); bring them "
            raise SourceMismatch(c.stream.path, "schema", f"{text}back, or give another --out")
        if meta.get("node_x_sha256") != self._of_nodes:
            text = f"nodes have other features {started}; bring the file back as it was, or give "
            raise SourceMismatch(str(c.graph.node_features), "schema", f"{text}another --out")

    def save(self, writer: Checkpoint) -> None:
        writer.note("position", self._num)
        writer.note("events_sha256", self._digest)
        writer.note("node_x_sha256", self._of_nodes)


def open_results(
    directory: RunDirectory,
    graph: TemporalGraph,
    command: Literal["compare", "train"],
    build: dict[str, Any],
    run_log: RunLog,
    components: Callable[[Checkpoint | None], list[Component]] = lambda newest: [],
) -> OfflineResults:
    """Return the results of offline trainings in the newest checkpoint, which saves further ones.

    A checkpoint that cannot be written is reported, and training continues.
    """
    events, c = SavedEvents(graph), directory.config.checkpoint
    store, newest, note = open_newest(directory, build, run_log)
    if newest is not None:
        events.check(newest.meta, directory)
    further = components(newest)
    directory.accept_settings()
    position = 0 if newest is None else store.entries()[-1].step
    results = OfflineResults(newest, position, command)
    checkpoints = Checkpoints(
        results,
        store,
        CheckpointWriter(store, max_failures=inf),
        run_log,
        replace(c, checkpoint_batches=None),
        components=[events, *further, SavedSettings(directory, build, note)],
    )
    results.is_due, results.take = checkpoints.after_step, checkpoints.take_and_wait
    return results
