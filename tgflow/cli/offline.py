"""Implementation of `tgflow train`: one offline trainer per seed, recorded and reported."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from rich.console import Console

from tgflow.checkpoint import Checkpoint, save
from tgflow.checkpoint.parts import Ids
from tgflow.checkpoint.typed import read_natural
from tgflow.choices import METRIC_TITLES
from tgflow.cli import assemble
from tgflow.cli.assemble import warn_of_first
from tgflow.cli.continual import failing_run, interruptible, printer
from tgflow.cli.errors import hint
from tgflow.cli.ranks import (
    check_rank_tables,
    check_ranks,
    check_training_ranks,
    join_ranks,
    report_as_rank,
    with_slices,
)
from tgflow.compare.offline_saves import OfflineSaves, Trained
from tgflow.config import Config, ConfigError, flat, plain, replaced
from tgflow.cuda.device import Device
from tgflow.distributed.feed import Feed, Followed, heartbeat_of
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.model import feature_widths
from tgflow.peers import Peers
from tgflow.report.formatting import compact, duration, reuse_line, score
from tgflow.report.label_figures import label_score
from tgflow.report.page import offline_report
from tgflow.report.table_text import print_feature_tables, print_labels, print_summary
from tgflow.runtime.briefing import Lead, hear_words
from tgflow.runtime.checkpoints import Component, SavedRecords
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.features import (
    HitRates,
    check_tables,
    check_unused,
    edge_file,
    features_report,
    open_edge_table,
    table_figures,
    with_cache,
)
from tgflow.runtime.files import SEEDS, RunFiles, read_records, run_name, to_json
from tgflow.runtime.gpu import (
    describe_device,
    device_figures,
    execution_config,
    graph_gpu,
    use_device,
)
from tgflow.runtime.log import RunLog
from tgflow.runtime.loggers import RunLoggers, check_loggers
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.runtime.model_maker import make_model
from tgflow.runtime.node_features import NodeFeatures
from tgflow.runtime.restore import current_build, open_saves
from tgflow.streams import EventSource
from tgflow.tasks.injection import inject
from tgflow.tasks.labels import count_classes, freeze, make_task
from tgflow.tasks.node_labels import LabeledNodes, node_label_figures, read_node_labels
from tgflow.train.config import ExecutionConfig
from tgflow.train.node_property import (
    PropertyLabels,
    asked_at_times,
    node_property_figures,
    read_property_labels,
)
from tgflow.train.observe import BatchRecord, Callback, EpochRecord
from tgflow.train.offline import OfflineTrainer
from tgflow.train.split import chronological_split
from tgflow.units import ticks_per_unit


def labeled(
    config: Config, graph: TemporalGraph, ids: NodeIds, rundir: RunFiles
) -> tuple[Config, TemporalGraph]:
    """Return settings and graph with what the task's labels add to them.

    That is how many classes there are; or made anomalies, whose positions are left in injected.csv.

    Raises:
        OSError: If a file of labels cannot be read.
        ValueError: If labels are missing or all the same, or there are too few events.
    """
    task, c = config.task, config.offline
    if task.has_decoder and task.classes is None:
        return replaced(config, {"task.classes": count_classes(graph)}), graph
    _read_labels(config, graph, ids)  # so that what is wrong is said before training
    if task.inject is None:
        return config, graph
    split = chronological_split(
        graph.log.read(0, graph.num_events),
        val_ratio=c.val_ratio,
        test_ratio=c.test_ratio,
        new_node_ratio=c.new_node_ratio,
        seed=c.data_seed,
    )
    made, places = inject(
        graph, task.inject, task.inject_share, start=split.test_start, seed=c.data_seed
    )
    lines = ["position", *map(str, places.tolist())]
    (rundir.path / "injected.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config, made


def learn_links(trainer: OfflineTrainer, observer: Callback, execution: ExecutionConfig) -> None:
    """Let the model of a trainer that learns labels alone learn links before.

    Args:
        trainer: Of a frozen model, which is frozen again when this returns.
        observer: Hears of what is learned.
        execution: How a GPU is used.
    """
    trainer.model.requires_grad_(True)
    links = OfflineTrainer(
        trainer.model, trainer.graph, trainer.config, observer, execution=execution
    )
    links.fit(progress=False)
    freeze(trainer.model)


def node_figures(config: Config, trainer: OfflineTrainer, ids: NodeIds) -> dict[str, float]:
    """Return how well labels of nodes are predicted, by `test.node.*` or `test.property.*`.

    Nothing without a file. The model's state ends as it was.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it does not have what it should.
    """
    found = _read_labels(config, trainer.graph, ids)
    c = trainer.config
    if isinstance(found, PropertyLabels):
        asked = asked_at_times(trainer.model, trainer.graph, c, trainer.split, found)
        figures = node_property_figures([*asked], found.num_items, seed=c.seed)
    elif found is not None:
        figures = node_label_figures(trainer.model, trainer.graph, found, c.data_seed)
        figures["node.num_unknown"] = found.num_unknown
    else:
        figures = {}
    return {f"test.{name}": value for name, value in figures.items()}


def _read_labels(
    config: Config, graph: TemporalGraph, ids: NodeIds
) -> LabeledNodes | PropertyLabels | None:
    """Return the labels of nodes that the settings name; None if they name none."""
    path = config.task.node_labels
    if path is None:
        return None
    if config.task.kind == "node":
        return read_node_labels(path, ids)
    per_unit = ticks_per_unit(config.stream.unit, graph.time_unit)
    return read_property_labels(path, ids, per_unit.numerator)


COMMAND: Final = "train"
"""Which trainer checkpoints name."""


def check_kind(directory: RunDirectory) -> None:
    """Refuse what another command has left.

    Raises:
        ConfigError: If it has.
    """
    found = directory.newest_meta().get("trainer", COMMAND) if directory.resumed else COMMAND
    if found != COMMAND:
        command = "compare" if found == "compare" else "run"
        raise ConfigError(
            f"{directory.path} is of tgflow {command}; resume it with tgflow {command} --resume, "
            "or give another --out"
        )


def prepare_directory(directory: RunDirectory, world: int) -> None:
    """Make sure that a training may use its directory; files of a killed one are made again.

    Raises:
        ConfigError: If it resumes among ranks, or names a file of features that is another run's.
    """
    config = directory.config
    if not directory.resumed:
        check_unused(config)
        return
    if world > 1:
        raise ConfigError(
            "--resume: what several ranks train together is not kept from epoch to epoch; leave "
            "out --nproc, or start over with another --out"
        )
    if (path := edge_file(config, directory.path)) is not None:
        path.unlink(missing_ok=True)


def open_training(
    directory: RunDirectory,
    graph: TemporalGraph,
    num_seeds: int | None,
    build: dict[str, Any],
    run_log: RunLog,
) -> tuple[OfflineSaves, int]:
    """Return what keeps a training, with what its newest checkpoint has of it; and how many seeds.

    Args:
        directory: Taken.
        graph: All events.
        num_seeds: How many were asked for; None: one, or as many as before.
        build: The machine and versions that results depend on.
        run_log: Gets what was found.

    Raises:
        ConfigError: If other settings are there, or another number of seeds.
        SourceMismatch: If the events are others than they were.
    """
    seeds = _SavedSeeds(num_seeds)
    parts: list[Component] = [SavedRecords(directory.files), seeds]
    return open_saves(directory, graph, COMMAND, build, run_log, parts), seeds.num


def result_of(seed: int, result: Mapping[str, Any]) -> Trained:
    """Return what a training came to; scores of single events it has none."""
    return Trained(str(seed), np.empty((0, 3)), result)


class _SavedSeeds(Component):
    """Number of seeds; `wanted` None: one, or as many as before."""

    def __init__(self, wanted: int | None) -> None:
        self._wanted, self.num = wanted, wanted or 1

    def save(self, writer: Checkpoint) -> None:
        """Note it."""
        writer.note("num_seeds", self.num)

    def load(self, reader: Checkpoint | None) -> None:
        """Restore the number; raises ConfigError if another was asked for."""
        if reader is None:
            return
        self.num = read_natural(reader.meta, "num_seeds")
        if self._wanted not in (None, self.num):
            raise ConfigError(
                f"--seeds: the training was started with {self.num}, got {self._wanted}; leave it "
                "out to resume, or give another --out"
            )


class EpochProgress(Callback):
    """Says what training does: a line an epoch, and on a terminal the batch in between."""

    def __init__(self, console: Console, epochs: int, rundir: RunFiles, rates: HitRates) -> None:
        self._console, self._epochs, self._rundir = console, epochs, rundir
        self._status = console.status("reading") if console.is_terminal else None
        self.seed = 0
        self._rates = rates
        self.records = read_records(rundir.records).kept
        """Of all epochs, also of those before a resume."""
        self._logs = True
        self._loggers: RunLoggers | None = None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    @contextmanager
    def unlogged(self) -> Iterator[None]:
        """Enclose what is shown and leaves no record."""
        self._logs = False
        yield
        self._logs = True

    @contextmanager
    def logging_to(self, loggers: RunLoggers) -> Iterator[None]:
        """Enclose epochs that are logged there too."""
        self._loggers = loggers
        with closing(loggers):
            yield
        self._loggers = None

    def on_batch(self, record: BatchRecord) -> None:
        """Show where training is."""
        if self._status is not None:
            self._status.update(
                f"seed {self.seed}  epoch {record.epoch + 1}/{self._epochs}  {record.stage}"
                f"  batch {record.index + 1}/{record.num_batches}"
            )

    def on_epoch(self, record: EpochRecord) -> None:
        """Print a line and log a record."""
        if self._logs:
            self.records.append({"seed": self.seed, **record.to_json(), **self._rates.lately()})
            self._rundir.log(self.records[-1])
            if self._loggers is not None:
                self._loggers.log(record.epoch + 1, self.records[-1])
                self._loggers.flush()
        self._console.print(
            f"seed {self.seed}  epoch {record.epoch + 1:>3}/{self._epochs}"
            f"  loss {record.loss:.4f}  val AP {score(record.val['ap'])}{label_score(record.val)}"
            f"{' *' if record.is_best else '  '}  {duration(record.seconds)}"
            f"  {compact(record.events_per_second)} events/s",
            highlight=False,
        )


PER_RUN = ("seed", "best_epoch", "num_epochs")
"""What is another thing in each run, so that its mean says nothing."""


def average(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each figure of several runs, its deviation as `KEY_std`, and the runs.

    The deviation is the sample's (divided by one less than the runs). Of one run: that run.
    """
    if len(results) == 1:
        return {"num_seeds": 1, **results[0]}
    out: dict[str, Any] = {
        "num_seeds": len(results),
        "seeds": [result["seed"] for result in results],
    }
    for key, value in results[0].items():
        values = [result[key] for result in results if key in result]
        if key in PER_RUN or len(values) < len(results):
            continue
        if isinstance(value, float):
            out[key] = statistics.fmean(values)
            out[f"{key}_std"] = statistics.stdev(values)
        else:
            out[key] = value
    return out | {"runs": [dict(result) for result in results]}


def train_offline(
    config: Config, num_seeds: int | None, as_json: bool, options: ResumeOptions
) -> None:
    """Train on the stream of `config`, once a seed, and leave a run directory.

    Args:
        config: The run's settings; of one that resumes, those it started with come first.
        num_seeds: Train with seeds `config.offline.seed` and the `num_seeds - 1` after it; None:
            one, or as many as the training that resumes was started with.
        as_json: Print the figures as JSON, not as a table.
        options: Whether to resume.
    """
    config = with_slices(config, options.stated or {}, "offline")
    with join_ranks(config, options, "offline", seeds=num_seeds) as peers:
        if peers.rank > 0:
            _follow(peers, num_seeds or 1)
            return
        with Lead(peers) as lead:
            directory = RunDirectory.find(config, run_name(config) + "-offline", options)
            try:
                _train(directory, num_seeds, as_json, lead)
            finally:
                directory.release()


def _follow(peers: Peers, num_seeds: int) -> None:
    """Train as rank 0 does, which has the results."""
    with report_as_rank(peers.rank):
        said = hear_words(peers)
        config = replaced(Config(), said["settings"])
        device = use_device(config)
        assemble.use_threads(config, config.offline.slices)
        with Followed(peers, said["unit"], said["x_dim"]) as events:
            gpu = graph_gpu(config, device)
            table = open_edge_table(config, events.x_dim, Path(), gpu)
            graph = assemble.grow_graph(
                config, events, said["direction"], events, table, gpu, said["node_x_dim"]
            )
        if table is not None:
            graph.edge_x = with_cache(config, table, "lru", gpu)
        for seed in range(config.offline.seed, config.offline.seed + num_seeds):
            _trainer(config, seed, graph, None, device, peers).fit(progress=False)


def _train(directory: RunDirectory, num_seeds: int | None, as_json: bool, lead: Lead) -> None:
    """Train as the only process, or as that which the others follow."""
    check_kind(directory)
    metrics = directory.files.read_json("metrics.json") if directory.resumed else None
    if metrics is None:
        inputs, console = _read(directory, lead), Console(stderr=True)
        with directory:
            run_log = RunLog(directory.path / "run.log", say=printer(console))
            with (
                failing_run(directory.path, run_log, COMMAND),
                interruptible(directory.path, console, COMMAND),
            ):
                metrics = _trained(directory, num_seeds, inputs, lead, run_log, console)
            run_log.info("end", "done", exit_code=0)
            run_log.close()
    if as_json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    else:
        _summary(metrics, directory.path, directory.config.offline.metric_names)


class _Inputs(NamedTuple):
    """What models are trained on, and where."""

    source: EventSource
    graph: TemporalGraph
    device: torch.device
    threads: int
    nodes: NodeFeatures | None


def _read(directory: RunDirectory, lead: Lead) -> _Inputs:
    """Check the settings of a training, and read all events."""
    config, world = directory.config, lead.peers.world
    prepare_directory(directory, world)
    check_loggers(config.operate.log_to)
    device = use_device(config)
    check_ranks(config, config.offline.slices, world)
    check_training_ranks(config, world)
    source = assemble.open_source(config)
    directory.config = config = assemble.settle_units(config, source)
    if not directory.resumed:
        warn_of_first(config)
    check_tables(config, source.x_dim, live=False)
    check_rank_tables(config, source.x_dim, world)
    threads = assemble.use_threads(config, config.offline.slices)
    nodes = assemble.open_node_features(config, source.ids)
    directory.take()
    graph = _read_graph(config, source, nodes, directory.files, device, lead)
    directory.config, graph = labeled(config, graph, source.ids, directory.files)
    return _Inputs(source, graph, device, threads, nodes)


def _trained(
    directory: RunDirectory,
    num_seeds: int | None,
    inputs: _Inputs,
    lead: Lead,
    run_log: RunLog,
    console: Console,
) -> dict[str, Any]:
    """Train with each seed, leave what that came to, and return the figures."""
    config, files, peers = directory.config, directory.files, lead.peers
    source, graph, device, threads, nodes = inputs
    if peers.world == 1:
        build = current_build(threads, device)
        saves, num_seeds = open_training(directory, graph, num_seeds, build, run_log)
    else:
        saves, num_seeds = OfflineSaves(), num_seeds or 1
    results: list[Mapping[str, Any]] = []
    with EpochProgress(console, config.offline.epochs, files, HitRates(graph)) as progress:
        for number, seed in enumerate(range(config.offline.seed, config.offline.seed + num_seeds)):
            done = saves.find(number, str(seed))
            if done is None:
                progress.seed = seed
                several = num_seeds > 1
                target = files.checkpoint / str(seed) if several else files.checkpoint
                logs = directory.path / SEEDS / str(seed) if several else directory.path
                trainer = _trainer(config, seed, graph, progress, device, peers, source.ids)
                fitted = _fitted(trainer, saves, target, logs, config, source.ids, progress)
                done = result_of(seed, fitted)
                saves.add(done)
            results.append(done.result)
    said = features_report(graph, nodes, source.ids)
    metrics = {
        "command": "train",
        "stream": config.stream.path,
        "model": config.model.name,
        **average(results),
        **({"features": said} if said else {}),
        "tables": table_figures(graph),
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        **device_figures(device),
        "machine": describe() | describe_device(device),
    }
    if graph.edge_x is not None:
        graph.edge_x.close()
    files.write_report(offline_report(progress.records, metrics, config))
    files.write_metrics(metrics)
    shutil.rmtree(directory.path / "checkpoints", ignore_errors=True)
    return metrics


def _fitted(
    trainer: OfflineTrainer,
    saves: OfflineSaves,
    target: Path,
    logs: Path,
    config: Config,
    ids: NodeIds,
    progress: EpochProgress,
) -> dict[str, Any]:
    """Train, from the newest epoch that was saved, and leave the model; return the figures.

    Args:
        trainer: What learns.
        saves: What was saved.
        target: Where the model goes.
        logs: The directory for what `--log-to` asks for.
        config: The run's settings.
        ids: Of the stream.
        progress: Hears of the trainer.
    """
    if not saves.resume(trainer) and config.task.freeze:
        with progress.unlogged():
            learn_links(trainer, progress, execution_config(config))
    with progress.logging_to(RunLoggers(config.operate.log_to, logs, trainer.num_epochs)):
        result = trainer.fit(partial(saves.after_epoch, trainer), progress=False)
    result |= node_figures(config, trainer, ids)
    checkpoint = trainer.checkpoint()
    Ids(ids).save(checkpoint)
    checkpoint.note("model", plain(config)["model"])
    save(target, checkpoint)
    return result


def _read_graph(
    config: Config,
    source: EventSource,
    nodes: NodeFeatures | None,
    rundir: RunFiles,
    device: torch.device,
    lead: Lead,
) -> TemporalGraph:
    """Return a graph of all events; no features are left on the disk if they cannot be read."""
    path, gpu = edge_file(config, rundir.path), graph_gpu(config, device)
    with ExitStack() as undo:
        table = open_edge_table(config, source.x_dim, rundir.path, gpu)
        if path is not None:
            undo.callback(path.unlink, missing_ok=True)  # only a file that is ours
        graph = _shared_graph(config, source, nodes, table, gpu, lead)
        undo.pop_all()
    if table is not None:
        plans = gpu is None and lead.peers.world == 1
        graph.edge_x = with_cache(config, table, "belady" if plans else "lru", gpu)
    return graph


def _shared_graph(
    config: Config,
    source: EventSource,
    nodes: NodeFeatures | None,
    table: Any,
    gpu: Device | None,
    lead: Lead,
) -> TemporalGraph:
    """Return a graph of all events, which the other ranks hear of, if there are any."""
    if lead.peers.world == 1:
        return assemble.read_graph(config, source, table, gpu, nodes)
    direction = assemble.direction_of(config, source)
    lead.send_words(
        {
            "settings": flat(config),
            "unit": source.unit,
            "x_dim": source.x_dim,
            "node_x_dim": assemble.dim_of(nodes),
            "direction": direction,
        }
    )
    stream = assemble.play_source(config, source, nodes)
    heartbeat = heartbeat_of(config.ranks.timeout)
    with Feed(lead.peers, stream, config.offline.batch_size, heartbeat=heartbeat) as feed:
        return assemble.grow_graph(
            config, source, direction, feed, table, gpu, assemble.dim_of(nodes)
        )


def _trainer(
    config: Config,
    seed: int,
    graph: TemporalGraph,
    observer: Callback | None,
    device: torch.device,
    peers: Peers,
    ids: NodeIds | None = None,
) -> OfflineTrainer:
    settings = replace(config.offline, seed=seed)
    edge_x_dim, node_x_dim = feature_widths(graph).values()
    model = make_model(config, settings, edge_x_dim, device, node_x_dim=node_x_dim)
    return OfflineTrainer(
        model,
        graph,
        settings,
        observer,
        execution=execution_config(config),
        ids=ids,
        peers=peers,
        task=make_task(config.task),
    )


def _summary(metrics: Mapping[str, Any], path: Path, own_metrics: Sequence[str]) -> None:
    parts = ("val", "test", "inductive.test")
    rows = [
        (name, *(_figure(metrics, f"{part}.{key}") for part in parts))
        for key, name in (METRIC_TITLES | {own: own for own in own_metrics}).items()
        if key != "mrr_hist"  # of continual learning alone
    ]
    seeds = metrics.get("seeds") or [metrics["seed"]]
    reuses = "reuse.reused" in metrics
    print_summary(
        ("", "validation", "test", "test, new nodes"),
        rows,
        f"{metrics['model']}, {metrics['num_events']:,} events, {metrics['num_nodes']:,} nodes, "
        f"{duration(metrics['epoch_seconds'])} an epoch, "
        f"{compact(metrics['events_per_second'])} events/s, visibility {metrics['visibility']}, "
        f"negatives {metrics['negatives']}, seeds {', '.join(map(str, seeds))}\n"
        f"{metrics['protocol_line']}" + (f"\n{reuse_line(metrics)}" if reuses else ""),
        path,
    )
    print_labels(metrics)
    for line in metrics.get("features", {}).values():
        hint(line)
    print_feature_tables(metrics["tables"])


def _figure(metrics: Mapping[str, Any], key: str) -> str:
    deviation = metrics.get(f"{key}_std")
    return score(metrics.get(key, nan)) + (f" ± {deviation:.4f}" if deviation is not None else "")
