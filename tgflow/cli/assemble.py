"""From settings to the parts of a run: source, model, run directory."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from tgflow.choices import Direction
from tgflow.cli.errors import NO_INPUT, CliError
from tgflow.config import Config, ConfigError, StreamConfig, replaced
from tgflow.config.model import PAIR_FEATURES, WIDTHS, model_settings, validate_model
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import MODELS
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.edge_table import check_own
from tgflow.runtime.features import check_tables
from tgflow.runtime.gpu import CPU, use_device
from tgflow.runtime.machine import num_cores
from tgflow.runtime.restore import EventShape
from tgflow.runtime.saved_scores import check_scores
from tgflow.runtime.transports import section_of
from tgflow.sampling import Sampler
from tgflow.streams import EventSource, open_stream, playback
from tgflow.streams.open import open_files
from tgflow.streams.rows.partitioned import PartitionedSource
from tgflow.streams.transports import Transport, find_transport, scheme_of
from tgflow.tables import FeatureTable
from tgflow.train.config import TrainingConfig
from tgflow.train.reducer import check_sliceable

_Source = TypeVar("_Source")


def open_source(config: Config) -> EventSource:
    """Open the stream that `config` describes.

    Raises:
        CliError: If no stream is named, or there is none.
    """
    return _opened(config, open_stream, sort=config.stream.sort)


def _opened(config: Config, opened: Callable[..., _Source], **options: Any) -> _Source:
    """Return what `opened` makes of the files that `config` names, with further options."""
    c = config.stream
    if not c.path:
        raise CliError("which stream? name a file of events: --stream events.csv", NO_INPUT)
    try:
        return opened(
            c.path,
            src=c.src,
            dst=c.dst,
            t=c.t,
            label=c.label,
            features=_features(c),
            time_unit=c.time_unit,
            tick_unit=c.tick_unit,
            format=c.format,
            id_kind=c.id_kind,
            bipartite=True if config.graph.direction == "bipartite" else None,
            **options,
        )
    except FileNotFoundError as error:
        raise CliError(f"{error}; --stream takes a path from {os.getcwd()}", NO_INPUT) from None


def _features(config: StreamConfig) -> str | list[str] | None:
    """Return feature columns as `open_stream` takes them: `["f*"]` is the prefix "f"."""
    match config.features:
        case [prefix] if prefix.endswith("*"):
            return prefix[:-1]
        case columns:
            return columns


def open_partitioned(config: Config) -> PartitionedSource:
    """Return the stream that `config` describes, of files or of a transport, as a resumable source.

    Raises:
        CliError: If no stream is named, or there is none.
        ConfigError: If the settings do not fit the transport, or there is no such one.
    """
    try:
        transport = find_transport(config.stream.path)
    except ValueError as error:
        raise ConfigError(f"--stream: {error}") from None
    if transport is not None:
        return _open_transport(config, transport)
    if config.stream.path and config.kafka.dead_letter_topic is not None:
        raise ConfigError("--dead-letter-topic: a topic for dead letters needs a stream of Kafka")
    return _opened(config, open_files, event_id=config.stream.event_id, checks=config.checks)


def check_together(config: Config) -> None:
    """Refuse settings of a run that contradict each other, before anything is made.

    Raises:
        ConfigError: If two do not go together.
    """
    order, stream = config.order, config.stream
    if order.idle_timeout is not None and not config.checkpoint.log:
        raise ConfigError(
            "--idle-timeout: it needs the log, which remembers when it passed; leave out --no-log"
        )
    transport = find_transport(stream.path)
    if stream.sort and transport is not None and not transport.ends:
        raise ConfigError("--sort: a topic has no end to wait for; use --allowed-lateness")
    if stream.sort and (order.allowed_lateness or order.late != "error" or order.idle_timeout):
        raise ConfigError(
            "--sort: all events are put in order, none is late; leave out --sort, or else "
            "--allowed-lateness, --late and --idle-timeout"
        )
    if order.dedup_window and stream.event_id is None:
        raise ConfigError("--dedup-window: by which ids? name their column: --event-id COLUMN")
    check_scores(config)


def _open_transport(config: Config, transport: Transport) -> PartitionedSource:
    if config.order.max_time_jump is None and not transport.ends:
        raise ConfigError(
            "--max-time-jump: order.max_time_jump must be given for a stream without an end, since "
            "one event far in the future would make all after it late: ticks, or none for any"
        )
    values: dict[str, Any] = {
        **_shallow(config.stream),
        **_shallow(section_of(config, config.stream.path)),
        "url": config.stream.path,
        "bipartite": config.graph.direction == "bipartite",
        "checks": config.checks,
    }
    known = {field.name for field in fields(transport.config)}
    taken = {k: v for k, v in values.items() if k in known and v is not None}
    try:
        return transport.open(transport.config(**taken))
    except ValueError as error:
        scheme = scheme_of(config.stream.path)
        raise ConfigError(f"[stream] and [{scheme}] do not fit together: {error}") from None


def _shallow(section: Any) -> dict[str, Any]:
    return {} if section is None else {f.name: getattr(section, f.name) for f in fields(section)}


def read_graph(
    config: Config,
    source: EventSource,
    edge_x: FeatureTable | None = None,
    gpu: Device | None = None,
) -> TemporalGraph:
    """Return a graph of all events of `source`, up to the limit of `config`.

    Args:
        config: The run's settings.
        source: Where the events come from.
        edge_x: An empty table for their features; None: in host memory.
        gpu: Where the graph is to be; None: on the host.
    """
    stream = playback(source, limit=config.stream.limit)
    return grow_graph(config, source, direction_of(config, source), stream, edge_x, gpu)


def grow_graph(
    config: Config,
    shape: EventShape,
    direction: Direction,
    stream: Iterable[EventBatch],
    edge_x: FeatureTable | None = None,
    gpu: Device | None = None,
) -> TemporalGraph:
    """Return a graph of all events of a stream, wherever it is read.

    Args:
        config: The run's settings.
        shape: What the events are.
        direction: How they become edges.
        stream: The events.
        edge_x: An empty table for their features; None: in host memory.
        gpu: Where the graph is to be; None: on the host.
    """
    graph = TemporalGraph(
        direction,
        shape.x_dim,
        time_unit=shape.unit,
        edge_x=edge_x,
        device="cpu" if gpu is None else gpu,
        device_budget=config.graph.device_budget,
    )
    for batch in stream:
        graph.append(batch)
    return graph


def direction_of(config: Config, source: EventSource) -> Direction:
    """Return how events become edges: bipartite if the source's ids are."""
    return "bipartite" if source.ids.bipartite else config.graph.direction


def with_pair_features(config: Config) -> Config:
    """Return the settings of a run that starts: pairs' history is read where nothing else is said.

    An own model decides for itself.
    """
    name = config.model.name
    if name not in MODELS or PAIR_FEATURES in model_settings(config.model):
        return config
    if PAIR_FEATURES not in {field.name for field in fields(MODELS[name].config)}:
        return config
    return replaced(config, {f"model.{PAIR_FEATURES}": True})


def make_model(
    config: Config, training: TrainingConfig, edge_x_dim: int, device: torch.device = CPU
) -> TemporalModel:
    """Build the model that `config` names, its first parameters drawn with the trainer's seed.

    They are drawn on the CPU, so that every device starts from the same.

    Draws nothing from torch's default generators that others could miss.

    Args:
        config: The run's settings.
        training: Those of its trainer.
        edge_x_dim: Width of the edge features.
        device: Where it is to be.

    Raises:
        ConfigError: If there is no such model, or its settings do not fit together.
    """
    name = config.model.name
    kind = own_model(name) if ":" in name else _known_model(name)
    stated = model_settings(config.model)
    derived = {"edge_x_dim": edge_x_dim}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        model = _build(kind, name, stated, derived)
    if not isinstance(model, TemporalModel):
        raise ConfigError(f"{name!r} made a {type(model).__name__}, not a tgflow.TemporalModel")
    try:
        Sampler(training.strategy or model.strategy, training.span)
    except ValueError as error:
        raise ConfigError(f"{error}; --strategy and --span go together") from None
    try:
        check_sliceable(model, training.slices)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return model.to(device)


def _build(kind: Any, name: str, stated: dict[str, Any], derived: dict[str, Any]) -> Any:
    """Return the model of class `kind`: with its settings as a dataclass, or as keywords."""
    parameters = inspect.signature(kind).parameters
    if "config" in parameters and is_dataclass(getattr(kind, "config_type", None)):
        settings = validate_model(kind.config_type, name, stated, derived)
        try:
            return kind(settings)
        except ValueError as error:
            raise ConfigError(f"[model] {name} does not fit together: {error}") from error
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [key for key in stated if key not in (*parameters, *WIDTHS) and not takes_all]
    if unknown:
        known = ", ".join(parameters)
        raise ConfigError(f"[model] {name} has no setting {unknown[0]!r} (it has {known})")
    values = {**derived, **stated}
    return kind(**{k: v for k, v in values.items() if takes_all or k in parameters})


def _known_model(name: str) -> type[TemporalModel]:
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise ConfigError(f"model.name must be one of {known}, or module:Class, got {name!r}")
    kind: type[TemporalModel] = MODELS[name].model
    return kind


def own_model(name: str) -> Any:
    """Import `module:Class` from the working directory or the path.

    Raises:
        ConfigError: If there is none.
    """
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # of an import within the module
        raise ConfigError(f"cannot build model {name!r}: {error}") from None
    except AttributeError as error:
        if not str(error).startswith(f"module {module!r}"):
            raise
        raise ConfigError(f"cannot build model {name!r}: {error}") from None
    finally:
        sys.path.pop(0)


class LiveInputs(NamedTuple):
    """What a run that learns from a stream begins with."""

    source: PartitionedSource
    """Where events come from, not started."""
    direction: Direction
    """How they become edges."""
    device: torch.device
    threads: int
    """CPU threads in use."""


def open_live(directory: RunDirectory) -> LiveInputs:
    """Check the settings of a run against each other and its stream, and open what it begins with.

    Raises:
        ConfigError: If settings contradict each other, or do not fit the stream.
    """
    config = directory.config
    check_together(config)
    device = use_device(config)
    threads = use_threads(config, config.continual.slices)
    source = open_partitioned(config)
    check_tables(config, source.x_dim, live=True)
    check_own(directory)
    direction: Direction = "bipartite" if source.ids.bipartite else config.graph.direction
    return LiveInputs(source, direction, device, threads)


def use_threads(config: Config, slices: int = 1) -> int:
    """Let torch and the core use the CPU threads that `config` allows; return how many.

    Args:
        config: The run's settings.
        slices: Of a batch: each is for a rank that has its part of the cores. So one process has
            the threads, and thus the bits, of a rank among many.
    """
    from tgflow import set_num_threads

    threads = config.run.threads or max(1, num_cores() // slices)
    torch.set_num_threads(threads)
    set_num_threads(threads)
    return threads
