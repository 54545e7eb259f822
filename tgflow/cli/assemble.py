"""From settings to the parts of a run: source, model, run directory."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from tgflow.cli.errors import NO_INPUT, CliError
from tgflow.config import Config, ConfigError, StreamConfig
from tgflow.events import EventBatch
from tgflow.graph import Direction, TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import MODELS
from tgflow.runtime.machine import num_cores
from tgflow.sampling import Sampler
from tgflow.streams import EventSource, open_stream, playback
from tgflow.streams.open import open_files
from tgflow.streams.rows.checks import Checks
from tgflow.streams.rows.partitioned import PartitionedSource
from tgflow.tables import FeatureTable
from tgflow.units import INT64_MAX, parse_bytes, seconds_per_tick

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
    """Return the stream that `config` describes, file or topic, as one that can be gone on with.

    Raises:
        CliError: If no stream is named, or there is none.
        ConfigError: If the settings do not fit a topic.
    """
    if config.stream.path.startswith("kafka://"):
        return _open_topic(config)
    if config.stream.path and config.kafka.dead_letter_topic is not None:
        raise ConfigError("--dead-letter-topic: a topic for dead letters needs a stream of Kafka")
    return _opened(config, open_files, event_id=config.stream.event_id, checks=_checks(config))


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
    if stream.sort and (order.allowed_lateness or order.late or order.idle_timeout):
        raise ConfigError(
            "--sort: all events are put in order, none is late; leave out --sort, or else "
            "--allowed-lateness, --late and --idle-timeout"
        )
    if order.dedup_window and stream.event_id is None:
        raise ConfigError("--dedup-window: by which ids? name their column: --event-id COLUMN")


def _open_topic(config: Config) -> PartitionedSource:
    from tgflow.streams.kafka import KafkaConfig, KafkaSource
    from tgflow.streams.kafka.config import parse_options

    c, k = config.stream, config.kafka
    if config.order.max_time_jump is None:
        raise ConfigError(
            "--max-time-jump: order.max_time_jump must be given for Kafka, since one event "
            "far in the future would make all after it late: ticks, or none for any"
        )
    if c.sort:
        raise ConfigError("--sort: a topic has no end to wait for; use --allowed-lateness")
    try:
        return KafkaSource(
            KafkaConfig(
                url=c.path,
                codec=c.codec,
                src=c.src,
                dst=c.dst,
                t=c.t,
                label=c.label,
                features=c.features or (),
                event_id=c.event_id,
                id_kind=c.id_kind or "int",
                bipartite=config.graph.direction == "bipartite",
                time_unit=c.time_unit,
                tick_unit=c.tick_unit,
                checks=_checks(config),
                until_end=c.until_end,
                on_expired=k.on_expired,
                max_outage=k.max_outage,
                group_id=k.group_id,
                options=parse_options(k.options),
            )
        )
    except ValueError as error:
        raise ConfigError(f"[stream] and [kafka] do not fit together: {error}") from None


def _checks(config: Config) -> Checks:
    c = config.checks
    return Checks(
        max_node_id=INT64_MAX if c.max_node_id is None else c.max_node_id,
        max_abs=c.max_abs,
        max_record_bytes=parse_bytes(c.max_record_bytes),
        unknown_keys=c.unknown_keys,
    )


class Feed:
    """The first `limit` events of a source when they are due, counted as they are read.

    Args:
        source: Where they come from.
        limit: How many at most, or None.
        speed: Multiple of real time, or None for full speed.
    """

    def __init__(self, source: EventSource, limit: int | None, speed: float | None = None) -> None:
        self._source, self._limit, self._speed = source, limit, speed
        self._read = 0
        known = source.num_events
        self.num_events = min(known, limit) if known is not None and limit else known
        """How many there will be, or None if that is not known."""

    def __iter__(self) -> Iterator[EventBatch]:
        left = math.inf if self._limit is None else self._limit
        for batch in playback(self._source, self._speed):
            part = batch if len(batch) <= left else batch[: int(left)]
            self._read += len(part)
            left -= len(part)
            yield part
            if left == 0:
                return

    def share(self, done: int) -> float:
        """Return which share of all events `done` of them are, 0 to 1, as far as can be told."""
        if self.num_events is not None:
            return min(done / self.num_events, 1.0) if self.num_events else 1.0
        if not self._read:
            return 0.0
        estimate = self._read / max(self._source.progress, 1e-9)
        return min(done / min(estimate, self._limit or estimate), 1.0)


def read_graph(
    config: Config, source: EventSource, edge_x: FeatureTable | None = None
) -> TemporalGraph:
    """Return a graph of all events of `source`, up to the limit of `config`.

    Args:
        config: The run's settings.
        source: Where the events come from.
        edge_x: An empty table for their features; None: in host memory.
    """
    graph = TemporalGraph(direction_of(config, source), source.x_dim, edge_x=edge_x)
    for batch in Feed(source, config.stream.limit):
        graph.append(batch)
    return graph


def direction_of(config: Config, source: EventSource) -> Direction:
    """Return how events become edges: bipartite if the source's ids are."""
    return "bipartite" if source.ids.bipartite else config.graph.direction


def make_model(config: Config, edge_x_dim: int, unit: str) -> TemporalModel:
    """Build the model that `config` names, its first parameters drawn with the run's seed.

    Args:
        config: The run's settings.
        edge_x_dim: Width of the edge features.
        unit: What a tick of the stream is.

    Raises:
        ConfigError: If there is no such model, or its sizes do not fit together.
    """
    settings: dict[str, Any] = {
        "edge_x_dim": edge_x_dim,
        "memory_dim": config.model.dim,
        "time_dim": config.model.dim,
        "embedding_dim": config.model.dim,
        "heads": config.model.heads,
        "layers": config.model.layers,
        "neighbors": config.model.neighbors,
        "dropout": config.model.dropout,
        "strategy": config.plan.strategy,
        "seconds_per_tick": seconds_per_tick(unit),
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    torch.manual_seed(config.run.seed)
    if ":" in config.model.name:
        return _sampled(config, _own_model(config.model.name, settings))
    if config.model.name not in MODELS:
        known = ", ".join(MODELS)
        raise ConfigError(
            f"model.name must be one of {known}, or module:Class, got {config.model.name!r}"
        )
    entry = MODELS[config.model.name]
    taken = {field.name for field in fields(entry.config)}
    try:
        chosen: Any = entry.config(**{k: v for k, v in settings.items() if k in taken})
    except ValueError as error:
        raise ConfigError(f"[model] does not fit together: {error}") from None
    return _sampled(config, entry.model(chosen))


def _sampled(config: Config, model: TemporalModel) -> TemporalModel:
    """Return the model, if its neighbors can be sampled as `config` says."""
    try:
        Sampler(config.plan.strategy or model.strategy, config.plan.span)
    except ValueError as error:
        raise ConfigError(f"[plan] {error}; --strategy and --span go together") from None
    return model


def _own_model(name: str, settings: dict[str, Any]) -> TemporalModel:
    """Import `module:Class` from the working directory or the path, and call it by keywords."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), attribute)(**settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"cannot build model {name!r}: {error}") from None
    finally:
        sys.path.pop(0)
    if not isinstance(made, TemporalModel):
        raise ConfigError(f"{name!r} made a {type(made).__name__}, not a tgflow.TemporalModel")
    return made


def use_threads(config: Config) -> int:
    """Let torch and the core use the CPU threads that `config` allows; return how many."""
    from tgflow._core import set_num_threads

    threads = config.run.threads or num_cores()
    torch.set_num_threads(threads)
    set_num_threads(threads)
    return threads


def run_name(config: Config) -> str:
    """Return what a run is called where nobody named it, such as collegemsg-tgn."""
    stem = Path(config.stream.path).name.split(".")[0] or "stream"
    return f"{stem}-{config.model.name.rpartition(':')[2].lower()}"
