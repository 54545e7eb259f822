"""Restore runs, offline trainings and comparisons from their newest checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch

from tgflow.checkpoint import Checkpoint, CheckpointStore, RowsLost
from tgflow.checkpoint.parts import Ids
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.choices import Direction
from tgflow.compare.comparison import Comparison
from tgflow.compare.lineup import Lineup
from tgflow.compare.offline_saves import OfflineSaves, SavedPart
from tgflow.config import Config, ConfigError
from tgflow.cuda.device import Device
from tgflow.distributed.memory import ShardedMemory
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.model import TemporalModel
from tgflow.nn import NodeMemory
from tgflow.peers import Alone, Peers, Shard
from tgflow.runtime.checkpoints import IngestPart, SavedSettings
from tgflow.runtime.directory import RunDirectory, differences, saved_settings
from tgflow.runtime.features import check_unused, edge_file, open_edge_table, scale_of, with_cache
from tgflow.runtime.gpu import describe_device, execution_config
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import describe
from tgflow.streams.errors import SourceMismatch
from tgflow.streams.ingest.state import IngestState
from tgflow.tables import DamagedFile, FeatureTable
from tgflow.tables.table import Table
from tgflow.tasks.labels import make_task
from tgflow.train.continual import ContinualTrainer
from tgflow.train.feature_rows import file_of, same_file
from tgflow.train.state import graph_of, load_model_before_labels
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import parse_bytes

BUILD = ("tgflow", "torch", "python", "system")
"""What of the machine may change a result's last bits, beside the threads."""


class StrictResume(RuntimeError):
    """Bits could differ from an undisturbed run, and `strict_resume` forbids that."""


def current_build(threads: int, device: torch.device) -> dict[str, Any]:
    """Return what of this machine may change a result's last bits."""
    found = describe()
    where = describe_device(device).get("gpu", "cpu")
    return {name: found[name] for name in BUILD} | {"threads": threads, "device": where}


def open_store(directory: RunDirectory) -> CheckpointStore:
    """Return the checkpoints of a run."""
    c = directory.config.checkpoint
    limit = c.max_checkpoint_bytes
    return CheckpointStore(
        directory.path / "checkpoints",
        keep=c.keep,
        max_bytes=None if limit is None else parse_bytes(limit),
    )


def find_newest(
    store: CheckpointStore, directory: RunDirectory, run_log: RunLog
) -> Checkpoint | None:
    """Return the checkpoint to resume from, None to start; its settings are then the directory's.

    Raises:
        ConfigError: If other settings are wanted, and that was not allowed.
    """
    found = store.newest()
    for problem in store.problems:
        run_log.warning("checkpoint", problem)
    if found is None:
        return None
    directory.compare(saved_settings(found[1].meta))
    return found[1]


@dataclass(frozen=True, slots=True)
class Start:
    """What a checkpoint says of the run beside its trainer; the defaults are a run's beginning."""

    ids: NodeIds | None = None
    state: IngestState | None = None
    elapsed: float = 0.0
    build: dict[str, Any] | None = None
    history: int = 0
    """Events that another run has left, which this one began with."""

    @classmethod
    def of(cls, checkpoint: Checkpoint | None) -> Start:
        """Return what `checkpoint` says; the beginning without one."""
        if checkpoint is None:
            return cls()
        ids, ingest = NodeIds(), IngestPart()
        Ids(ids).load(checkpoint)
        ingest.load(checkpoint)
        return replace(cls.said_by(checkpoint), ids=ids, state=ingest.state)

    @classmethod
    def said_by(cls, checkpoint: Checkpoint) -> Start:
        """Return what `checkpoint` says of the run alone, and nothing of its stream."""
        run = read_as(dict[str, Any], checkpoint.meta.get("run"), "run")
        elapsed = read_as(float, run.get("elapsed"), "run.elapsed")
        build = read_as(dict[str, str | int | None], run.get("build"), "run.build")
        history = read_as(int, run.get("history", 0), "run.history")
        return cls(elapsed=elapsed, build=build, history=history)


def check_build(
    saved: dict[str, Any] | None, build: dict[str, Any], *, strict: bool, run_log: RunLog
) -> None:
    """Warn where bits could differ from those of the machine that wrote the checkpoint.

    Raises:
        StrictResume: If the settings forbid that.
    """
    differing = [] if saved is None else differences(saved, build)
    if not differing:
        return
    text = f"{'; '.join(differing)}: results may differ in their last bits from an undisturbed run"
    if strict:
        raise StrictResume(f"{text}, and strict_resume is set; resume as it was, or unset it")
    run_log.warning("other build", text)


class EventShape(Protocol):
    """What the events of a stream are, wherever it is read."""

    @property
    def unit(self) -> str:
        """What a tick is."""

    @property
    def x_dim(self) -> int:
        """Width of the edge features, 0 without them."""


def make_trainer(
    source: EventShape,
    direction: Direction,
    model: TemporalModel | Lineup,
    directory: RunDirectory,
    checkpoint: Checkpoint | None,
    run_log: RunLog,
    gpu: Device | None = None,
    peers: Peers | None = None,
    initial: Checkpoint | None = None,
    node_x_dim: int = 0,
) -> StreamTrainer:
    """Return the trainer of a run: of a checkpoint, with all that the checkpoint holds.

    Args:
        source: Where events come from.
        direction: How they become edges.
        model: On its device; or the models to compare.
        directory: The run's.
        checkpoint: What to resume from; None starts.
        run_log: Hears of a model that starts afresh.
        gpu: With the graph and its features; None where they are on the host.
        peers: The ranks that learn together; None: this process alone.
        initial: Of another run, to begin with where there is no checkpoint.
        node_x_dim: Width of the features of nodes that come with the events; 0 for none.

    Raises:
        CheckpointError: If the checkpoint does not fit the model.
        RowsLost: If the file of edge features has not the rows that the checkpoint counts.
        OSError: If that file cannot be opened.
        ValueError: If the source has another time unit than the checkpoint's events.
    """
    config, budget = directory.config.continual, directory.config.graph.device_budget
    peers = Alone() if peers is None else peers
    shard = _shared_out(model, directory.config, peers)
    execution = execution_config(directory.config)
    scores = directory.config.scores.to is not None
    task = make_task(directory.config.task)
    table = open_table(directory, source.x_dim, checkpoint, gpu)
    device = "cpu" if gpu is None else gpu
    where: dict[str, Any] = {"device": device, "device_budget": budget, "edge_x": table}
    if checkpoint is None and initial is not None:
        assert isinstance(model, TemporalModel)
        graph = graph_of(initial, shard=shard, **where)
        graph.check_time_unit(source)
        _check_features(graph, directory.config, node_x_dim)
        load_model_before_labels(model, initial)
        return ContinualTrainer(
            model, graph, config, execution=execution, peers=peers, scores=scores, task=task
        )
    if checkpoint is None:
        graph = TemporalGraph(
            direction,
            time_unit=source.unit,
            edge_x=table,
            node_x=FeatureTable(node_x_dim) if node_x_dim else None,
            device=device,
            device_budget=budget,
            shard=shard,
            feature_scale=scale_of(directory.config.graph.feature_scale, source.x_dim + node_x_dim),
        )
        if isinstance(model, TemporalModel):
            return ContinualTrainer(
                model, graph, config, execution=execution, peers=peers, scores=scores, task=task
            )
        return Comparison(model, graph, config, execution=execution)
    _check_node_width(checkpoint, node_x_dim)
    if not isinstance(model, TemporalModel):
        compared = Comparison.from_checkpoint(
            model, checkpoint, config, execution=execution, **where
        )
        compared.graph.check_time_unit(source)
        return compared
    keep_model = directory.effect != "fixed_model"
    if not keep_model:
        run_log.warning("other model", "model, optimizer and memory start afresh, as was allowed")
    trainer = ContinualTrainer.from_checkpoint(
        model,
        checkpoint,
        config,
        execution=execution,
        peers=peers,
        scores=scores,
        task=task,
        keep_model=keep_model,
        shard=shard,
        **where,
    )
    trainer.graph.check_time_unit(source)
    return trainer


def _check_node_width(checkpoint: Checkpoint, node_x_dim: int) -> None:
    """Make sure that features of nodes are as wide as those of the checkpoint.

    Raises:
        ConfigError: If they are not.
    """
    noted = read_as(dict[str, Any], checkpoint.meta.get("node_x", {}), "node_x")
    there = read_as(int, noted.get("dim", 0), "node_x.dim")
    if there != node_x_dim:
        raise ConfigError(
            f"--node-features: those of the run have width {there}, and now {node_x_dim}; give the "
            "file and the --node-columns that it was started with"
        )


def _check_features(graph: TemporalGraph, config: Config, node_x_dim: int) -> None:
    """Make sure that features go on as they were in the run to begin with.

    Raises:
        ConfigError: If they would not.
    """
    there = 0 if graph.node_x is None else graph.node_x.dim
    if there != node_x_dim:
        raise ConfigError(
            f"--init-from: that run has node features of width {there}, this one of {node_x_dim}; "
            "give the same --node-features"
        )
    scale, wanted = graph.feature_scale, config.graph.feature_scale
    found = "none" if scale is None else scale.kind
    if (graph.edge_x is not None or there) and found != wanted:
        raise ConfigError(
            f"--init-from: that run has --feature-scale {found}, this one {wanted}; give the same"
        )


def _shared_out(model: TemporalModel | Lineup, config: Config, peers: Peers) -> Shard | None:
    """Give each rank its part of what the settings want sharded; return the graph's, if it is."""
    if peers.world == 1:
        return None
    if isinstance(model, TemporalModel) and config.ranks.memory == "sharded":
        state = model.state
        model.state = ShardedMemory(state, peers) if isinstance(state, NodeMemory) else state
    return peers.shard if config.ranks.graph == "sharded" else None


def open_table(
    directory: RunDirectory,
    x_dim: int,
    checkpoint: Checkpoint | None,
    gpu: Device | None,
) -> Table | None:
    """Return the table, cache and all, as the settings want it; None without features.

    What its file holds and no checkpoint counts comes from log or source again, so it is cut off.

    Args:
        directory: The run's directory, taken.
        x_dim: Width of the features.
        checkpoint: What to resume from; None starts.
        gpu: With the graph; None where that is on the host.

    Raises:
        RowsLost: If its file has not the rows that the checkpoint counts.
        OSError: If its file cannot be opened.
    """
    file = edge_file(directory.config, directory.path)
    counted = None if checkpoint is None else file_of(checkpoint.meta, "edge_x")
    if file is not None and not file.exists() and same_file(counted, file):
        raise RowsLost(f"{file} is gone, and with it the edge features that the checkpoint counts")
    try:
        table = open_edge_table(directory.config, x_dim, directory.path, gpu)
    except DamagedFile as error:
        raise RowsLost(f"the run's edge features cannot be read: {error}") from None
    if table is None:
        return None
    if counted is None:
        table.truncate(0)
    return with_cache(directory.config, table, "lru", gpu)


def check_own(directory: RunDirectory) -> None:
    """Refuse a file of edge features that may be another run's, which would be cut off or moved.

    A run resumes with a file that the settings did not name before if its checkpoint counts rows in
    a file: they are looked for there, and nothing is changed if they are others.

    Raises:
        ConfigError: If the settings name one that is there.
    """
    if directory.resumed and not any(
        change.key == "tables.edge_path" for change in directory.changed
    ):
        return
    if file_of(directory.newest_meta(), "edge_x") is None:
        check_unused(directory.config)


class SavedEvents:
    """Which events models are trained and tested on, and features of which nodes.

    A checkpoint has none of them.

    Args:
        graph: Of all events.
    """

    def __init__(self, graph: TemporalGraph) -> None:
        self._num = graph.num_events
        events, digest = graph.log.read(0, graph.num_events), hashlib.sha256()
        for column in (events.src, events.dst, events.t):
            digest.update(column.numpy().data)
        self._digest = digest.hexdigest()
        self._of_nodes = None if graph.node_x is None else _digest_of(graph.node_x)

    def check(self, meta: Mapping[str, Any], directory: RunDirectory) -> None:
        """Raise SourceMismatch if a checkpoint was of other events, or features of nodes.

        Raises UntrustedCheckpoint if it says what is never saved.
        """
        num = read_natural(meta, "position")
        digest = read_as(str, meta.get("events_sha256"), "events_sha256")
        if (num, digest) != (self._num, self._digest):
            raise SourceMismatch(
                directory.config.stream.path,
                "schema",
                f"it has other events than when {directory.path} was started "
                f"({num:,} then, {self._num:,} now); bring them back, or give another --out",
            )
        if meta.get("node_x_sha256") != self._of_nodes:
            raise SourceMismatch(
                str(directory.config.graph.node_features),
                "schema",
                f"nodes have other features than when {directory.path} was started; bring the file "
                "back as it was, or give another --out",
            )

    def save(self, writer: Checkpoint) -> None:
        """Note how many there are, and their digest."""
        writer.note("position", self._num)
        writer.note("events_sha256", self._digest)
        writer.note("node_x_sha256", self._of_nodes)

    def saved(self) -> None:
        """Do nothing."""


def _digest_of(table: Table) -> str:
    return hashlib.sha256(table.read(0, len(table)).contiguous().numpy().data).hexdigest()


class LoadedPart(SavedPart, Protocol):
    """What comes back from the checkpoints, too."""

    def load(self, reader: Checkpoint) -> None:
        """Become what was saved."""

    def clear(self) -> None:
        """Begin: there is no checkpoint."""


def open_saves(
    directory: RunDirectory,
    graph: TemporalGraph,
    command: Literal["compare", "train"],
    build: dict[str, Any],
    run_log: RunLog,
    parts: Sequence[LoadedPart] = (),
) -> OfflineSaves:
    """Return what keeps what offline trainings come to, as its newest checkpoint has it.

    Args:
        directory: Taken.
        graph: All events.
        command: Whose run it is.
        build: The machine and versions that results depend on.
        run_log: Gets what was found.
        parts: What else belongs in the checkpoints; loaded, or cleared.

    Raises:
        ConfigError: If other settings are there.
        SourceMismatch: If the events are others than they were.
        StrictResume: If bits could differ, and the settings forbid that.
    """
    store, events = open_store(directory), SavedEvents(graph)
    newest = find_newest(store, directory, run_log)
    start = Start() if newest is None else Start.said_by(newest)
    if newest is not None:
        events.check(newest.meta, directory)
    for part in parts:
        if newest is None:
            part.clear()
        else:
            part.load(newest)
    check_build(
        start.build, build, strict=directory.config.checkpoint.strict_resume, run_log=run_log
    )
    directory.accept_settings()
    path = directory.config.stream.path
    settings = SavedSettings(directory, build, path, elapsed=start.elapsed)
    return OfflineSaves(
        store,
        newest,
        every=directory.config.checkpoint.checkpoint_every,
        parts=[events, *parts, settings],
        command=command,
        warn=lambda text: run_log.warning("checkpoint", text),
    )
