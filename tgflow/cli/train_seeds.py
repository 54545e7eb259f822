"""The seeds of `tgflow train`: their inputs, one offline trainer each, and what is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.peers import Peers
from tgflow.base.units import duration, ticks_per_unit
from tgflow.checkpoint import Checkpoint, Component, save
from tgflow.checkpoint.sections import Ids
from tgflow.checkpoint.typed import read_natural
from tgflow.cli import inputs as assemble
from tgflow.cli import rank_setup as ranks
from tgflow.cli.errors import DATA, CliError
from tgflow.cuda.device import device_of
from tgflow.graph import TemporalGraph
from tgflow.graph.ids import NodeIds
from tgflow.nn.model import feature_widths, has_parameters
from tgflow.ranks.broadcast import Followed, Lead, receive_config
from tgflow.report.callbacks import check_logger
from tgflow.report.compare.offline import OfflineResults
from tgflow.report.formatting import compact, score
from tgflow.report.label_figures import label_score
from tgflow.run import features
from tgflow.run.config import Config, ConfigError, in_flags, plain, replaced
from tgflow.run.config.schema import ModelConfig, RunConfig
from tgflow.run.directory import RunDirectory
from tgflow.run.gpu import execution_config, use_device
from tgflow.run.ingestion import save_columns
from tgflow.run.loggers import RunLogger
from tgflow.run.model_maker import make_model
from tgflow.run.records import SEEDS, RunFiles, read_records
from tgflow.streams.files.formats import read_table
from tgflow.train.config import ExecutionConfig, OfflineConfig
from tgflow.train.node_property import PropertyLabels, asked_at_times, node_property_figures
from tgflow.train.observe import BatchRecord, Callback, EpochRecord
from tgflow.train.offline import OfflineTrainer
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import freeze
from tgflow.train.tasks.node_labels import LabeledNodes, node_label_figures


def follow(peers: Peers, num_seeds: int) -> None:
    """Train in step with rank 0, which keeps the results."""
    with ranks.report_as_rank(peers.rank):
        said = receive_config(peers)
        c = replaced(Config(), said["settings"])
        device = use_device(c.run.device, c.model.precision)
        assemble.use_threads(c.run.threads, c.serve)
        with Followed(peers, said["unit"], said["x_dim"]) as events:
            gpu = device_of(device) if c.has_gpu_graph else None
            table = features.open_edge_table(
                c.placement, c.tables.edge_budget, events.x_dim, None, gpu, c.graph.device_budget
            )
            direction, width = said["direction"], said["node_x_dim"]
            graph = assemble.grow_graph(
                c.graph, c.offline, events, direction, events, table, gpu, width
            )
        if table is not None:
            graph.edge_x = features.with_cache(c.tables, table, "lru", gpu)
        for seed in range(c.offline.seed, c.offline.seed + num_seeds):
            _trainer(c, graph, seed, device, peers).fit(progress=False)


class Inputs(NamedTuple):
    """Inputs shared by all seeds."""

    graph: TemporalGraph
    ids: NodeIds
    labels: LabeledNodes | PropertyLabels | None
    device: torch.device
    threads: int
    columns: tuple[Mapping[str, Sequence[str]], Mapping[str, int]]
    """Texts of the numbers 0, 1, ... by column; widths of the feature columns."""
    about_features: dict[str, str]
    """Sentences about features of edges and nodes."""


def read_inputs(directory: RunDirectory, lead: Lead) -> Inputs:
    config, world = directory.config, lead.peers.world
    tables, for_graph = config.tables, config.graph.device_budget
    path = features.edge_file(config.placement, tables.edge_path, directory.path)
    if not directory.resumed:
        features.check_unused(tables.edge_path)
    elif world > 1:
        raise ConfigError(
            "--resume: training with several processes saves no epochs; leave "
            "out --nproc, or start over with another --out"
        )
    elif path is not None:
        path.unlink(missing_ok=True)  # it is recreated
    check_logger(config.operate.log_to)  # before anything is created
    source, nodes, device, threads = assemble.open_offline(directory, world)
    types = assemble.open_node_types(directory)
    config = directory.config
    if not directory.resumed:
        assemble.warn_of_first(config.stream, config.graph, config.task)
    directory.take()
    gpu = device_of(device) if config.has_gpu_graph else None
    with ExitStack() as undo:  # leave no features on disk if events cannot be read
        table = features.open_edge_table(
            config.placement, tables.edge_budget, source.x_dim, path, gpu, for_graph
        )
        if path is not None:
            undo.callback(path.unlink, missing_ok=True)
        graph = assemble.read_graph(directory, source, nodes, types, gpu, lead, table)
        undo.pop_all()
    if table is not None:
        plans = gpu is None and world == 1
        graph.edge_x = features.with_cache(tables, table, "belady" if plans else "lru", gpu)
    labels: LabeledNodes | PropertyLabels | None = None
    task, c, ids = directory.config.task, config.stream, source.ids
    if (file := task.node_labels) is not None:
        found = read_table(file, ["node"])[1]
        if task.kind == "node":
            more = c.positive_label, c.unknown_label or (), task.classes
            try:
                labels = LabeledNodes.of(found, ids, file, *more)
            except ValueError as error:
                raise CliError(in_flags(str(error), file), DATA) from None
        else:
            per_unit = ticks_per_unit(c.unit, graph.time_unit).numerator
            labels = PropertyLabels.of(found, ids, per_unit, file)
    report = features.features_report(graph, nodes, ids)
    columns = source.classes, source.features
    return Inputs(graph, ids, labels, device, threads, columns, report)


def _trainer(
    c: Config,
    graph: TemporalGraph,
    seed: int,
    device: torch.device,
    peers: Peers,
    observer: Callback | None = None,
    ids: NodeIds | None = None,
) -> OfflineTrainer:
    settings, execution = replace(c.offline, seed=seed), _execution(c.model, c.run)
    edge_x_dim, node_x_dim = feature_widths(graph).values()
    model = make_model(c.model, c.task, settings, edge_x_dim, device, node_x_dim=node_x_dim)
    more: dict[str, Any] = {"execution": execution, "ids": ids, "peers": peers}
    return OfflineTrainer(model, graph, settings, observer, **more)


def _execution(model: ModelConfig, run: RunConfig) -> ExecutionConfig:
    return execution_config(model.precision, capture=run.capture)


def fit(
    directory: RunDirectory,
    inputs: Inputs,
    peers: Peers,
    results: OfflineResults,
    epochs: EpochLog,
    folder: Path,
) -> dict[str, Any]:
    """Train one seed from its newest saved epoch; write the model, return the figures."""
    config, path = directory.config, directory.path
    seed, device, graph = epochs.seed, inputs.device, inputs.graph
    trainer = _trainer(config, graph, seed, device, peers, epochs, inputs.ids)
    model = trainer.model
    if not results.resume(trainer) and config.task.freeze:  # learn links before labels alone
        model.requires_grad_(True)
        of_links = replace(trainer.config, task=TaskConfig())
        execution = _execution(config.model, config.run)
        links = OfflineTrainer(model, graph, of_links, epochs, execution=execution)
        links.fit(progress=False)
        freeze(model)
    logs = path / SEEDS / folder if folder.name else path
    epochs.facts = config.label_facts
    epochs.is_rule = not has_parameters(model)  # its logits are only an order
    with ExitStack() as opened:
        if config.operate.log_to is not None:
            logger = RunLogger(logs, trainer.num_epochs, epochs.facts)
            epochs.logger = opened.enter_context(logger)
        epochs.is_recorded = True
        result = trainer.fit(partial(results.after_epoch, trainer), progress=False)
    epochs.logger, epochs.is_recorded = None, False
    result |= _node_figures(trainer, inputs.labels)
    checkpoint = trainer.checkpoint()
    Ids(inputs.ids).save(checkpoint)
    save_columns(*inputs.columns, checkpoint)
    checkpoint.note("model", plain(config)["model"])
    save(path / "checkpoint" / folder, checkpoint)
    return result


def _node_figures(
    trainer: OfflineTrainer, labels: LabeledNodes | PropertyLabels | None
) -> dict[str, float]:
    """Return metrics of node label prediction, `test.node.*` or `test.property.*`, if any."""
    c, figures = trainer.config, dict[str, float]()
    if isinstance(labels, PropertyLabels):
        asked = asked_at_times(trainer.model, trainer.graph, c, trainer.split, labels)
        figures = node_property_figures([*asked], labels.num_items, seed=c.seed)
    elif labels is not None:
        figures = node_label_figures(trainer.model, trainer.graph, labels, c.data_seed)
        figures["node.num_unknown"] = labels.num_unknown
    out = {f"test.{name}": value for name, value in figures.items()}
    if "test.property.val_ndcg" in out:
        out["val.property.ndcg"] = out.pop("test.property.val_ndcg")
    return out


class SavedSeeds(Component):
    """The number of seeds, in checkpoints; `wanted` is None for one, or as many as before."""

    def __init__(self, wanted: int | None) -> None:
        self._wanted, self.num = wanted, wanted or 1

    def save(self, writer: Checkpoint) -> None:
        writer.note("num_seeds", self.num)

    def load(self, reader: Checkpoint | None) -> None:
        if reader is None:
            return
        self.num = read_natural(reader.meta, "num_seeds")
        if self._wanted not in (None, self.num):
            raise ConfigError(
                f"--seeds: the training was started with {self.num}, got {self._wanted}; leave it "
                "out to resume, or give another --out"
            )


class EpochLog(Callback):
    """Prints and records each epoch."""

    def __init__(
        self, console: Console, c: OfflineConfig, files: RunFiles, rates: features.HitRates
    ) -> None:
        self._console, self._epochs, self._metric = console, c.epochs, c.select_metric
        self._files, self._rates = files, rates
        self.seed, self.is_rule = 0, False
        self.records = read_records(files.records).kept
        """Records of all epochs, including those before a resume."""
        self.logger: RunLogger | None = None
        self.is_recorded = False
        """Whether epochs are recorded; progress is printed anyway."""
        self.facts: Mapping[str, str] = {}
        """As `Config.label_facts`."""
        self.bar = Callback()
        """Progress of an epoch on a terminal."""

    def on_batch(self, record: BatchRecord) -> None:
        self.bar.on_batch(record)

    def on_epoch(self, record: EpochRecord) -> None:
        if self.is_recorded:
            values = record.to_json() | self._rates.lately()
            self.records.append({"seed": self.seed, **values})
            self._files.log(self.records[-1])
            if self.logger is not None:
                self.logger.log(record.epoch + 1, self.records[-1])
                self.logger.flush()
        learned = f"epoch {record.epoch + 1:>3}/{self._epochs}  loss {record.loss:.4f}"
        self._console.print(
            f"seed {self.seed}  {'one pass' if self.is_rule else learned}"
            f"  val {METRIC_TITLES[self._metric]}"
            f" {score(record.val[self._metric])}{label_score(record.val, self.facts)}"
            f"{' *' if record.is_best else '  '}  {duration(record.seconds)}"
            f"  {compact(record.events_per_second)} events/s",
            highlight=False,
        )
