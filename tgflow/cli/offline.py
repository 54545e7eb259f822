"""What `tgflow train` does: an offline trainer per seed, shown, recorded, reported."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, Self

import torch
from rich.console import Console

from tgflow.checkpoint import save
from tgflow.checkpoint.parts import Ids
from tgflow.cli import assemble
from tgflow.cli.labeling import labeled, node_figures
from tgflow.cli.ranks import (
    check_rank_tables,
    check_ranks,
    check_training_ranks,
    joined,
    speaking,
    with_slices,
)
from tgflow.config import Config, plain
from tgflow.config.model import model_label
from tgflow.cuda.device import Device
from tgflow.distributed.feed import Feed, Followed, heartbeat_of
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.peers import Peers
from tgflow.report.formatting import compact, duration, reuse_line, score
from tgflow.report.label_figures import TASKS
from tgflow.report.page import offline_report
from tgflow.report.table_text import print_feature_tables, print_labels, print_summary
from tgflow.runtime.briefing import Lead, config_of, hear_words
from tgflow.runtime.directory import ResumeOptions
from tgflow.runtime.features import (
    check_tables,
    check_unused,
    edge_file,
    open_edge_table,
    with_cache,
)
from tgflow.runtime.files import RunFiles, run_name, to_json
from tgflow.runtime.gpu import (
    describe_device,
    device_figures,
    execution_config,
    graph_gpu,
    use_device,
)
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.runtime.model_maker import make_model
from tgflow.runtime.table_stats import HitRates, table_figures
from tgflow.streams import EventSource, playback
from tgflow.tasks.labels import make_task
from tgflow.train.observe import BatchRecord, Callback, EpochRecord
from tgflow.train.offline import OfflineTrainer

PER_RUN = ("seed", "best_epoch", "num_epochs")
"""What is another thing in each run, so that its mean says nothing."""


def train_offline(config: Config, num_seeds: int, as_json: bool, stated: Mapping[str, Any]) -> None:
    """Train on the stream of `config`, once a seed, and leave a run directory.

    Args:
        config: The run's settings.
        num_seeds: Train with seeds `config.offline.seed` and the `num_seeds - 1` after it.
        as_json: Print the figures as JSON, not as a table.
        stated: The settings that were asked for, by "section.key".
    """
    config = with_slices(config, stated, "offline")
    with joined(config, ResumeOptions(), "offline") as peers:
        if peers.rank > 0:
            _follow(peers, num_seeds)
            return
        with Lead(peers) as lead:
            _train(config, num_seeds, as_json, lead)


def _follow(peers: Peers, num_seeds: int) -> None:
    """Train as rank 0 does, which has the results."""
    with speaking(peers.rank):
        said = hear_words(peers)
        config = config_of(said["settings"])
        device = use_device(config)
        assemble.use_threads(config, config.offline.slices)
        with Followed(peers, said["unit"], said["x_dim"]) as events:
            gpu = graph_gpu(config, device)
            table = open_edge_table(config, events.x_dim, Path(), gpu)
            graph = assemble.grow_graph(config, events, said["direction"], events, table, gpu)
        if table is not None:
            graph.edge_x = with_cache(config, table, "lru", gpu)
        for seed in range(config.offline.seed, config.offline.seed + num_seeds):
            _trainer(config, seed, graph, events.x_dim, None, device, peers).fit()


def _train(config: Config, num_seeds: int, as_json: bool, lead: Lead) -> None:
    """Train as the only process, or as that which the others follow."""
    peers = lead.peers
    device = use_device(config)
    check_ranks(config, config.offline.slices, peers.world)
    check_training_ranks(config, peers.world)
    source = assemble.open_source(config)
    check_tables(config, source.x_dim, live=False)
    check_rank_tables(config, source.x_dim, peers.world)
    check_unused(config)
    threads = assemble.use_threads(config, config.offline.slices)
    rundir = RunFiles.choose(config.run.out, run_name(config) + "-offline")
    graph = _read_graph(config, source, rundir, device, lead)
    config, graph = labeled(config, graph, source.ids, rundir)
    rundir.make()
    rundir.write_config(config)
    results = []
    rates = HitRates(graph)
    with _Progress(Console(stderr=True), config.offline.epochs, rundir, rates) as progress:
        for seed in range(config.offline.seed, config.offline.seed + num_seeds):
            progress.seed = seed
            target = rundir.checkpoint / str(seed) if num_seeds > 1 else rundir.checkpoint
            trainer = _trainer(
                config, seed, graph, source.x_dim, progress, device, peers, source.ids
            )
            results.append(trainer.fit() | node_figures(config, trainer, source.ids))
            checkpoint = trainer.checkpoint()
            Ids(source.ids).save(checkpoint)
            checkpoint.note("model", plain(config)["model"])
            save(target, checkpoint)
    metrics = {
        "command": "train",
        "stream": config.stream.path,
        "model": model_label(config.model),
        **average(results),
        "tables": table_figures(graph),
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        **device_figures(device),
        "machine": describe() | describe_device(device),
    }
    if graph.edge_x is not None:
        graph.edge_x.close()
    rundir.write_metrics(metrics)
    rundir.write_report(offline_report(progress.records, metrics, config))
    if as_json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    else:
        _summary(metrics, rundir)


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


def _read_graph(
    config: Config, source: EventSource, rundir: RunFiles, device: torch.device, lead: Lead
) -> TemporalGraph:
    """Return a graph of all events; nothing is left on the disk if they cannot be read."""
    path, gpu = edge_file(config, rundir.path), graph_gpu(config, device)
    with ExitStack() as undo:
        if path is not None and source.x_dim:
            if not rundir.path.exists():
                undo.callback(rundir.path.rmdir)
            rundir.make()
        table = open_edge_table(config, source.x_dim, rundir.path, gpu)
        if path is not None:
            undo.callback(path.unlink, missing_ok=True)  # only a file that is ours
        graph = _shared_graph(config, source, table, gpu, lead)
        undo.pop_all()
    if table is not None:
        plans = gpu is None and lead.peers.world == 1
        graph.edge_x = with_cache(config, table, "belady" if plans else "lru", gpu)
    return graph


def _shared_graph(
    config: Config, source: EventSource, table: Any, gpu: Device | None, lead: Lead
) -> TemporalGraph:
    """Return a graph of all events, which the other ranks hear of, if there are any."""
    if lead.peers.world == 1:
        return assemble.read_graph(config, source, table, gpu)
    direction = assemble.direction_of(config, source)
    lead.tell(
        {
            "settings": plain(config),
            "unit": source.unit,
            "x_dim": source.x_dim,
            "direction": direction,
        }
    )
    stream = playback(source, limit=config.stream.limit)
    heartbeat = heartbeat_of(config.ranks.timeout)
    with Feed(lead.peers, stream, config.offline.batch_size, heartbeat=heartbeat) as feed:
        return assemble.grow_graph(config, source, direction, feed, table, gpu)


def _trainer(
    config: Config,
    seed: int,
    graph: TemporalGraph,
    x_dim: int,
    observer: Callback | None,
    device: torch.device,
    peers: Peers,
    ids: NodeIds | None = None,
) -> OfflineTrainer:
    settings = replace(config.offline, seed=seed)
    model = make_model(config, settings, x_dim, device)
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


class _Progress(Callback):
    """Says what training does: a line an epoch, and on a terminal the batch in between."""

    def __init__(self, console: Console, epochs: int, rundir: RunFiles, rates: HitRates) -> None:
        self._console, self._epochs, self._rundir = console, epochs, rundir
        self._status = console.status("reading") if console.is_terminal else None
        self.seed = 0
        self._rates = rates
        self.records: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()
        self._rundir.close()

    def on_batch(self, record: BatchRecord) -> None:
        """Show where training is."""
        if self._status is not None:
            self._status.update(
                f"seed {self.seed}  epoch {record.epoch + 1}/{self._epochs}  {record.stage}"
                f"  batch {record.index + 1}/{record.num_batches}"
            )

    def on_epoch(self, record: EpochRecord) -> None:
        """Print a line and log a record."""
        self.records.append({"seed": self.seed, **record.to_json(), **self._rates.lately()})
        self._rundir.log(self.records[-1])
        self._console.print(
            f"seed {self.seed}  epoch {record.epoch + 1:>3}/{self._epochs}"
            f"  loss {record.loss:.4f}  val AP {score(record.val['ap'])}{_label_score(record)}"
            f"{' *' if record.is_best else '  '}  {duration(record.seconds)}"
            f"  {compact(record.events_per_second)} events/s",
            highlight=False,
        )


def _label_score(record: EpochRecord) -> str:
    """Return how well labels were predicted, in a few words; nothing where none were."""
    names = (f"{task}.{key}" for task in TASKS for key in ("auc", "accuracy"))
    found = [f"  {name} {score(record.val[name])}" for name in names if name in record.val]
    return "".join(found[:1])


def _summary(metrics: Mapping[str, Any], rundir: RunFiles) -> None:
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
        rundir.path,
    )
    print_labels(metrics)
    print_feature_tables(metrics["tables"])


def _figure(metrics: Mapping[str, Any], key: str) -> str:
    deviation = metrics.get(f"{key}_std")
    return score(metrics.get(key, nan)) + (f" ± {deviation:.4f}" if deviation is not None else "")
