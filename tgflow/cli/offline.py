"""What `tgflow train` does: an offline trainer per seed, shown, recorded, reported."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from tgflow.checkpoint import save
from tgflow.checkpoint.parts import Ids
from tgflow.cli import assemble
from tgflow.cli.averages import average
from tgflow.cli.continual import failing_run, interruptible, printer
from tgflow.cli.epoch_progress import EpochProgress
from tgflow.cli.guards import warn_of_first
from tgflow.cli.hints import hint
from tgflow.cli.labeling import labeled, learn_links, node_figures
from tgflow.cli.ranks import (
    check_rank_tables,
    check_ranks,
    check_training_ranks,
    join_ranks,
    report_as_rank,
    with_slices,
)
from tgflow.cli.training_saves import (
    COMMAND,
    check_kind,
    open_training,
    prepare_directory,
    result_of,
)
from tgflow.compare.offline_saves import OfflineSaves
from tgflow.config import Config, plain
from tgflow.cuda.device import Device
from tgflow.distributed.feed import Feed, Followed, heartbeat_of
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.model import feature_widths
from tgflow.peers import Peers
from tgflow.report.formatting import compact, duration, reuse_line, score
from tgflow.report.page import offline_report
from tgflow.report.table_text import print_feature_tables, print_labels, print_summary
from tgflow.runtime.briefing import Lead, config_of, hear_words
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.features import (
    check_tables,
    edge_file,
    features_report,
    open_edge_table,
    with_cache,
)
from tgflow.runtime.files import SEEDS, RunFiles, run_name, to_json
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
from tgflow.runtime.restore import current_build
from tgflow.runtime.table_stats import HitRates, table_figures
from tgflow.streams import EventSource
from tgflow.tasks.labels import make_task
from tgflow.train.observe import Callback
from tgflow.train.offline import OfflineTrainer


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
        config = config_of(said["settings"])
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
        _summary(metrics, directory.path)


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
    check_loggers(config)
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
    with progress.logging_to(RunLoggers(config, logs, trainer.num_epochs)):
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
            "settings": plain(config),
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


def _summary(metrics: Mapping[str, Any], path: Path) -> None:
    parts = ("val", "test", "inductive.test")
    rows = [
        (name, *(_figure(metrics, f"{part}.{key}") for part in parts))
        for name, key in (("AP", "ap"), ("AUC", "auc"), ("MRR", "mrr"))
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
