"""Build the parts of a run from settings: source, graph, directory; warn of unusual streams."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import Tensor

from tgflow.base.choices import Direction
from tgflow.base.peers import Peers
from tgflow.base.text import printable
from tgflow.cli.errors import (
    DATA,
    IO,
    NO_INPUT,
    CliError,
    cause_of,
    exit_code,
    explain,
    hint,
    mark_reported,
)
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch, concat, with_inverses
from tgflow.graph.feature_scale import FREEZE_AT
from tgflow.graph.id_columns import Kind
from tgflow.graph.tables import DamagedFile, FeatureTable
from tgflow.ranks.broadcast import Feed, Followed, Lead
from tgflow.ranks.launch import read_launch
from tgflow.report.callbacks import check_logger
from tgflow.run.config import Config, ConfigError, StreamConfig, flat, in_flags, replaced
from tgflow.run.config.rules import comes_live
from tgflow.run.config.schema import GraphConfig, ServeConfig
from tgflow.run.context import RunContext
from tgflow.run.directory import RunDirectory, learn_again
from tgflow.run.features import check_tables, scale_of
from tgflow.run.gpu import describe_device, device_figures, use_device
from tgflow.run.log import RunLog, library_messages
from tgflow.run.machine import describe, num_cores, peak_rss_bytes
from tgflow.run.node_features import NodeFeatures, NodeTypes
from tgflow.run.posted_labels import label_token
from tgflow.run.restore import check_own
from tgflow.run.scores import check_alerts, check_scores
from tgflow.run.serving import check_serving
from tgflow.streams import EventSource, StreamError, StreamOptions, open_stream, playback
from tgflow.streams.errors import LateEvent, TooManyBadRecords
from tgflow.streams.files.reader import FileSource, is_pipe
from tgflow.streams.options import TextLayout
from tgflow.streams.rows.row_batch import PartitionedSource
from tgflow.streams.rows.schema import ID_KINDS, UNCOUNTED, IdKind, time_guard
from tgflow.streams.rows.validate import feature_names, label_text, label_values
from tgflow.streams.transports import find_transport, scheme_of
from tgflow.train.config import OfflineConfig
from tgflow.train.split import training_end
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import count_classes

_KINDS: Mapping[IdKind, Kind] = {"int": "integers", "string": "strings"}
_Source = TypeVar("_Source", EventSource, FileSource)
_Inputs = TypeVar("_Inputs", EventSource, PartitionedSource)


def open_source(stream: StreamConfig, graph: GraphConfig, task: TaskConfig) -> EventSource:
    """Open a stream as a whole; CliError if it is not named or does not exist."""
    return _opened(stream, graph, task, open_stream, sort=stream.sort)


def _opened(
    c: StreamConfig,
    graph: GraphConfig,
    task: TaskConfig,
    opened: Callable[..., _Source],
    *,
    quiet: bool = False,
    **options: Any,
) -> _Source:
    """Open files by `opened`, with further options; report detected settings unless `quiet`."""
    if not c.path:
        raise CliError("no stream given; name a file of events: --stream events.csv", NO_INPUT)
    try:
        source: _Source = opened(
            c.path,
            bipartite=True if graph.direction == "bipartite" else None,
            **{each.name: getattr(c, each.name) for each in fields(StreamOptions)},
            **options,
        )
        if isinstance(source, FileSource) and source.refusal is not None:
            raise source.refusal
    except FileNotFoundError as error:
        raise _not_found(error, "--stream") from None
    except StreamError as error:
        if task.target is None or "label=..." not in str(error):
            raise
        text = in_flags(error.text.replace("label=", "target="))
        raise CliError(f"{error.where}: {text}", DATA) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for note in () if quiet else source.notes:
        hint(in_flags(note))
    return source


def _not_found(error: FileNotFoundError, flag: str) -> CliError:
    return CliError(f"{error}; {flag} takes a path from {os.getcwd()}", NO_INPUT)


def inferred(source: PartitionedSource | EventSource, c: StreamConfig) -> dict[str, object]:
    """Return the settings of ids, columns and units of time that a source found in its rows."""
    found: dict[str, object] = {"stream.id_kind": source.id_kind}
    if not isinstance(source, FileSource | EventSource):
        return found
    found |= {f"stream.{role}": name for role, name in source.columns.items()}
    return found | (_units(source) if c.time_unit is None else {})


def _units(source: FileSource | EventSource) -> dict[str, object]:
    """Return the units of a source's times, as settings."""
    tick = None if source.unit == source.time_unit else source.unit
    return {"stream.time_unit": source.time_unit, "stream.tick_unit": tick}


def open_node_features(
    c: GraphConfig, source: PartitionedSource | EventSource, fill_missing: float | None
) -> NodeFeatures | None:
    """Read the configured node features, keyed by the stream's ids; None without."""
    if c.node_features is None:
        return None
    try:
        nodes = NodeFeatures(
            c.node_features,
            id=c.node_id,
            columns=c.node_columns,
            side=c.node_side,
            fill_missing=fill_missing,
        )
        nodes.check_sides(bipartite=source.ids.bipartite)
        nodes.use(_KINDS[source.id_kind])
        return nodes
    except FileNotFoundError as error:
        raise _not_found(error, "--node-features") from None
    except StreamError as error:
        text = re.sub(r"\b(id|columns|side)=", r"node_\1=", error.text)
        raise type(error)(error.where, error.code, text) from None


def open_node_types(directory: RunDirectory) -> NodeTypes | None:
    """Read the configured node types; None without. A resumed run refuses other types.

    The digest of the types becomes a setting of the directory.
    """
    c = directory.config.graph
    types = None
    if c.node_types is not None:
        try:
            types = NodeTypes(c.node_types)
            types.use(_KINDS[directory.config.stream.id_kind or "int"])
        except FileNotFoundError as error:
            raise _not_found(error, "--node-types") from None
    digest = None if types is None else types.digest
    if directory.resumed and digest != c.node_types_digest:
        raise ConfigError(
            f"--node-types: {c.node_types} has other types than the run was started with; give the "
            "same file, or start over with another --out"
        )
    directory.config = replaced(directory.config, {"graph.node_types_digest": digest})
    return types


def open_partitioned(
    config: Config, part: int = 0, label_time: str | None = None
) -> PartitionedSource:
    """Open the stream of `config`, of files (`part` as of `FileSource`) or of a transport.

    A stream of labels has the column `label_time`, when each came.
    """
    c, graph, transport = config.stream, config.graph, find_transport(config.stream.path)
    if transport is None:
        more: dict[str, Any] = {"event_id": c.event_id, "follow": c.follow, "checks": config.checks}
        more |= {"part": part, "label_time": label_time, "labels_later": config.labels.are_given}
        return _opened(c, graph, config.task, FileSource, **more)
    scheme, bipartite = scheme_of(c.path), graph.direction == "bipartite"
    values: dict[str, Any] = {"url": c.path, "checks": config.checks, "bipartite": bipartite}
    values["label_time"] = label_time
    for each in (config.section_of(scheme), c):
        if is_dataclass(each):
            values = {f.name: getattr(each, f.name) for f in fields(each)} | values
    known = {field.name for field in fields(transport.config)}
    taken = {k: v for k, v in values.items() if k in known and v is not None}
    if c.time_format is not None and "time_format" not in known:
        raise ConfigError("--time-format is for files; convert times before they are published")
    try:
        settings = transport.config(**taken)
        if c.id_kind is None and transport.id_kind is not None:
            kind, reason = transport.id_kind(settings)
            settings = replace(settings, id_kind=kind)
            if config.operate.log_format != "json":
                hint(f"ids are {ID_KINDS[kind]}{reason}")
        return transport.open(settings)
    except StreamError:
        raise
    except ValueError as error:
        raise ConfigError(f"[stream] and [{scheme}] are inconsistent: {error}") from None


def open_label_source(config: Config) -> PartitionedSource | None:
    """Open the stream of labels that come after their events; None without one."""
    c, names, by_id = config.stream, config.labels.roles, config.has_label_ids
    if config.labels.stream is None:
        return None
    time, event_id = names.get("time", "label_time"), names.get("event_id", c.event_id)
    own: dict[str, Any] = {each.name: None for each in fields(TextLayout)}
    own |= dict.fromkeys(("features", "categorical", "relation", "weight", "event_id"))
    own |= {role: names.get(role, getattr(c, role)) for role in ("src", "dst", "t", "label")}
    if by_id:
        own |= dict.fromkeys(("src", "dst", "event_id"), event_id)
        own |= {"t": time, "id_kind": "string"}
    own |= {"path": config.labels.stream, "sep": c.sep}
    found = {f"stream.{name}": value for name, value in own.items()}
    found |= {"labels.stream": None, "labels.token": None}
    wanted = replaced(config, found)
    try:
        return open_partitioned(wanted, label_time=None if by_id else time)
    except StreamError as error:
        roles = {"src": "event_id", "dst": "event_id", "t": "time"} if by_id else {}
        roles |= {"label_time": "time"}
        named = re.sub(
            r"\b(src|dst|t|label|label_time|event_id)='?(\.\.\.|[^']+)'?",
            lambda found: f"--label-column '{roles.get(found[1], found[1])}={found[2]}'",
            error.text,
        )
        raise type(error)(error.where, error.code, named) from None


def late_counted(error: Exception, run: RunContext) -> Exception:
    """Return the error of a run; of an appended file with late events it has their number."""
    late, first = cause_of(error), run.directory.first
    if not isinstance(late, LateEvent) or first <= run.trainer.graph.log.first:
        return error
    last, again = run.trainer.graph.log.read(first - 1, first).t, open_partitioned(run.config)
    again.start({})
    num_late = num_rows = 0
    while not again.ended():
        for rows in again.poll({0}, 1.0):
            num_rows += rows.num_rows
            num_late += int((rows.events.t < int(last)).sum())
    text = (
        f"{num_late:,} of the {num_rows:,} rows of {again.name} are before tick {int(last)}, the "
        "last event of the run; with --allow-config-change, --late dead_letter puts them aside, "
        "and --late drop leaves them out"
    )
    return LateEvent(late.where, late.code, text) if num_late else error


def hint_late(run: RunContext) -> None:
    """Print how many rows of an appended file were late, if any."""
    counts = [run.ingest.accounting.counts, {} if run.state is None else run.state.counts]
    refused = [each.get("0", {}).get("refused", {}).get("late", {}) for each in counts]
    num = refused[0].get("count", 0) - refused[1].get("count", 0)
    if run.directory.part and num:
        c = run.config
        hint(f"{num:,} rows of {c.stream.path} come after later events: --late {c.order.late}")


def announce_labels(config: Config, *, resumed: bool) -> Config:
    """Return settings with the labels of the target that are classes, counted in files; hint them.

    Of a stream that can be read only once, the labels are 0 and 1 or -1 and 1, or as given.
    """
    c, task, found, counts = config.stream, config.task, dict[str, Any](), dict[str, int]()
    if task.target is None:
        return config
    path, num = c.path, task.classes or 2
    if c.label_values not in (None, UNCOUNTED) and not resumed:
        given = {text: 0 for each in c.label_values if (text := label_text(each)) is not None}
        try:
            values = label_values(task.target, given, c.positive_label, task.classes)
        except ValueError as error:
            raise ConfigError(f"--label-values: {in_flags(str(error))}") from None
        if len(given) < len(c.label_values) or values is None:
            raise ConfigError(f"--label-values must be different labels, got {c.label_values}")
        found["stream.label_values"] = values
        if task.classes is None and len(given) > 2:
            found["task.classes"] = len(given)
    elif c.label_values is None and not resumed:  # a resumed run reads them as before
        found["stream.unknown_label"] = c.unknown_label or ()
        if find_transport(path) is not None or c.follow or (path and is_pipe(path)):
            if num > 2:
                found["stream.label_values"] = tuple(map(str, range(num)))
            elif c.positive_label is None:
                found["stream.label_values"] = UNCOUNTED
        else:
            counts, values, refusal = _counted_labels(replaced(config, found), task.target)
            if refusal is not None:
                raise CliError(refusal, DATA)
            found["stream.label_values"] = values
            if task.classes is None and values is not None and len({*counts}) > 2:
                found["task.classes"] = len(values)
    config = replaced(config, found)
    if config.operate.log_format != "json":
        hint(printable(label_line(config, counts)))
    return config


def _counted_labels(
    config: Config, name: str
) -> tuple[dict[str, int], tuple[str, ...] | None, str | None]:
    """Return the labels of files with their counts, those that are classes, and a refusal."""
    more = {"labels_later": config.labels.are_given}
    events = _opened(config.stream, config.graph, config.task, FileSource, quiet=True, **more)
    later = (
        None
        if comes_live(config.stream, config.labels)
        else open_label_source(replaced(config, _units(events)))
    )
    counts = Counter[str]()
    for source in (events, later):
        if isinstance(source, FileSource):
            counts.update(source.count_labels())
    try:
        values = label_values(name, counts, config.stream.positive_label, config.task.classes)
    except ValueError as error:
        return counts, tuple(counts), in_flags(str(error))
    return counts, values, None


def propose_labels(config: Config) -> tuple[str, Config]:
    """Return which label of files is class 1, or what to pass; and settings that read them all."""
    c, name = config.stream, config.stream.label or ""
    config = replaced(config, {"stream.unknown_label": c.unknown_label or ()})
    counts, values, refusal = _counted_labels(config, name)
    config = replaced(config, {"stream.label_values": values})
    if refusal is not None:
        return refusal, config
    many = len(values) if values is not None and len(counts) > 2 else None
    task = {"task.kind": "edge", "task.target": name, "task.classes": many}
    return label_line(replaced(config, task), counts), config


def label_line(config: Config, counts: Mapping[str, int]) -> str:
    """Return a sentence on which labels are which class, with their `counts`, {} if not counted."""
    total = sum(counts.values())

    def rows(value: str) -> str:
        return f" ({counts.get(value, 0):,} of {total:,} rows)" if counts else ""

    if (value := config.positive_label) is not None:
        shown = value if re.fullmatch(r"-?[0-9]+", value) else repr(value)
        return f"label {config.task.target}: {shown} is positive{rows(value)}"
    values = config.stream.label_values or ()
    some = ", ".join(f"{value}{rows(value)}" for value in values[:8]) + ", ..." * (len(values) > 8)
    what = f"{config.task.classes} classes" + (f": {some}" if some else "")
    return f"label {config.task.target}: {what}"


def check_events(path: str, num_events: int) -> None:
    """Raise CliError if the whole stream had no event."""
    if not num_events:
        raise CliError(f"{path} has no events: there is nothing to learn from", NO_INPUT)


def dim_of(nodes: NodeFeatures | None) -> int:
    return 0 if nodes is None else nodes.dim


def read_graph(
    directory: RunDirectory,
    source: EventSource,
    nodes: NodeFeatures | None,
    types: NodeTypes | None,
    gpu: Device | None,
    lead: Lead | None = None,
    edge_x: FeatureTable | None = None,
) -> TemporalGraph:
    """Return a graph of all events, after sending it to the other ranks, if any.

    The number of classes of the task's labels becomes a setting, counted if it was not given.
    """
    config, task = directory.config, directory.config.task
    c, offline = config.graph, config.offline
    direction, width = direction_of(c, source), dim_of(nodes)
    stream: Iterable[EventBatch] = playback(source, limit=config.stream.limit)
    if offline.inverse:
        stream = map(with_inverses, stream)
    if nodes is not None:
        stream = nodes.along(stream, ids=source.ids)
    with ExitStack() as opened:
        if lead is not None and lead.peers.world > 1:
            shape = {"unit": source.unit, "x_dim": source.x_dim, "node_x_dim": width}
            lead.send_config({"settings": flat(config), "direction": direction, **shape})
            feed = Feed(lead.peers, stream, offline.batch_size, timeout=config.ranks.timeout)
            stream = opened.enter_context(feed)
        graph = grow_graph(c, offline, source, direction, stream, edge_x, gpu, width)
    check_events(config.stream.path, graph.num_events)
    if task.has_decoder and task.classes is None:
        directory.config = replaced(config, {"task.classes": count_classes(graph)})
    if types is not None:
        graph.log.node_types = partial(types.of, source.ids)
    return graph


def grow_graph(
    c: GraphConfig,
    offline: OfflineConfig,
    shape: EventSource | Followed,
    direction: Direction,
    stream: Iterable[EventBatch],
    edge_x: FeatureTable | None = None,
    gpu: Device | None = None,
    node_x_dim: int = 0,
) -> TemporalGraph:
    """Return a graph of all events of a stream."""
    freeze_at, x_dim = FREEZE_AT, shape.x_dim + node_x_dim
    if x_dim and c.feature_scale != "none":
        freeze_at, stream = _training_part(offline, stream)
    graph = TemporalGraph(
        direction,
        shape.x_dim,
        time_unit=shape.unit,
        edge_x=edge_x,
        node_x=FeatureTable(node_x_dim) if node_x_dim else None,
        device="cpu" if gpu is None else gpu,
        device_budget=c.device_budget,
        feature_scale=scale_of(c.feature_scale, x_dim, freeze_at),
    )
    for batch in stream:
        graph.append(batch)
    return graph


def _training_part(
    c: OfflineConfig, stream: Iterable[EventBatch]
) -> tuple[int, Iterable[EventBatch]]:
    """Return the event count at which the feature scale is frozen, and the stream.

    It lies within the training part; a short stream is read completely to find its end.
    """
    enough = FREEZE_AT / (1 - c.val_ratio - c.test_ratio)
    batches = iter(stream)
    first: list[EventBatch] = []
    while sum(len(batch) for batch in first) <= enough:
        batch = next(batches, None)
        if batch is None:
            end = training_end(concat(first).t, c.val_ratio, c.test_ratio)
            return max(1, min(FREEZE_AT, end)), first
        first.append(batch)
    return FREEZE_AT, chain(first, batches)


def direction_of(c: GraphConfig, source: PartitionedSource | EventSource) -> Direction:
    """Return the mapping of events to edges: bipartite if the source's ids are."""
    return "bipartite" if source.ids.bipartite else c.direction


def open_live(directory: RunDirectory, peers: Peers | None = None) -> RunContext:
    """Validate the settings of a run together with its stream, and open its inputs."""
    config, peers = directory.config, Peers() if peers is None else peers
    check_scores(config.scores.to, config.stream.tick)
    served_at, _ = check_serving(config.serve), label_token(config.labels)
    check_logger(config.operate.log_to)  # before anything is created
    check_own(directory)
    source, nodes, device, threads = _open_inputs(
        directory, lambda d: open_partitioned(d.config, d.part), peers.world
    )
    check_alerts(directory.config.scores.alert_budget, directory.config.task)
    types = open_node_types(directory)
    labels = open_label_source(directory.config)
    run = RunContext(
        directory=directory,
        peers=peers,
        unit=source.unit,
        x_dim=source.x_dim,
        node_x_dim=dim_of(nodes),
        direction=direction_of(config.graph, source),
        nodes=nodes,
        types=types,
        served_at=served_at,
    )
    run.device, run.threads, run.source, run.label_source = device, threads, source, labels
    return run


def open_offline(
    directory: RunDirectory, world: int = 1
) -> tuple[EventSource, NodeFeatures | None, torch.device, int]:
    """Open the inputs of an offline training: stream, node features, device and threads."""

    def opened(directory: RunDirectory) -> EventSource:
        c = directory.config
        return open_source(c.stream, c.graph, c.task)

    return _open_inputs(directory, opened, world)


def _open_inputs(
    directory: RunDirectory, opened: Callable[[RunDirectory], _Inputs], world: int
) -> tuple[_Inputs, NodeFeatures | None, torch.device, int]:
    """Open device, threads, stream and node features; what they resolve becomes settings."""
    c = directory.config
    device = use_device(c.run.device, c.model.precision)
    threads = use_threads(c.run.threads, c.serve)
    directory.config = c = announce_labels(c, resumed=directory.resumed)
    source = opened(directory)
    if isinstance(source, FileSource | EventSource) and c.operate.log_format != "json":
        hint(in_flags(source.id_note))
    found = inferred(source, c.stream) | {"run.threads": threads}
    directory.config = c = replaced(c, found)
    check_tables(c.tables, c.placement, source.x_dim, world)
    return source, open_node_features(c.graph, source, c.stream.fill_missing), device, threads


def use_threads(threads: int | None, serve: ServeConfig) -> int:
    """Set the CPU threads of torch and the core; return their number.

    By default the cores of this host are divided among its ranks. The number is a setting of the
    run from then on, as bits depend on it: a resume has it too, with any number of ranks.
    """
    from tgflow import set_num_threads

    launch = read_launch(os.environ)
    num_ranks = 1 if launch is None else launch.local_world
    serving = 0 if serve.at is None else serve.replicas  # each computes on a core
    threads = threads or max(1, num_cores() // num_ranks - serving)
    torch.set_num_threads(threads)
    set_num_threads(threads)
    return threads


def machine_figures(threads: int, device: torch.device) -> dict[str, Any]:
    """Return the metrics of a run that describe the machine and its memory."""
    return {
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        **device_figures(device),
        "machine": describe() | describe_device(device),
    }


def printer(console: Console) -> Callable[[str], None]:
    """Return a function that prints an unformatted line above a live display."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def logged(directory: RunDirectory, command: str, console: Console) -> Iterator[RunLog]:
    """Lock the directory and yield its log, which records the error that ends the command."""
    path, way_out = directory.path, f"tgflow {command} --resume --out {directory.path}"
    with directory:
        run_log = RunLog(path / "run.log", directory.config.operate.log_format, printer(console))
        run_log.info("ids", f"ids are {ID_KINDS[directory.config.stream.id_kind or 'int']}")
        try:
            with library_messages(run_log):
                yield run_log
        except KeyboardInterrupt:
            console.print(f"stopped; resume with: {way_out}", markup=False, soft_wrap=True)
            raise
        except Exception as error:
            text = explain(error)
            if exit_code(error) == IO:
                text += f"; once that is fixed, resume with: {way_out}"
            if isinstance(error, TooManyBadRecords):
                text += f"; the rows and their faults are in {path / 'dead-letters'}"
            if isinstance(cause_of(error), DamagedFile):
                text += f"; bring it back from a copy, or {learn_again(path, 'it')}"
            run_log.error("end", text, exit_code=exit_code(error))
            mark_reported(error, text)
            raise
        run_log.close()


FIRST_EVENTS = 1_000
"""Events that are checked if the stream is not read as a whole."""
HUGE = 1_000.0
"""Absolute value at which a feature dominates the others."""
UNEQUAL = 3
"""Ratio of the numbers of ids on both sides that suggests two kinds, such as users and items."""


def warn_of_first(stream: StreamConfig, graph: GraphConfig, task: TaskConfig) -> None:
    """Warn of anomalies in the first events of files, unless they cannot be read."""
    path = stream.path
    if not path or is_pipe(path) or find_transport(path) is not None:
        return
    source = _opened(stream, graph, task, open_stream, quiet=True)
    try:
        events = source.first(FIRST_EVENTS)
    except StreamError:  # reported by the actual read
        return
    warn(events, source, is_scaled=graph.feature_scale != "none")


def warn(events: EventBatch, source: EventSource, *, is_scaled: bool) -> None:
    """Print a yellow line for each anomaly in events of `source`."""
    if not len(events):
        return
    found = [time_guard(int(events.t[0]), source.unit)]
    if not source.ids.bipartite:
        found.append(sides_guard(events.src, events.dst))
    if events.x is not None:
        names = feature_names([*source.features], [*source.features.values()])
        found += [None if is_scaled else huge_guard(events.x, names)]
        found += [constant_guard(events.x, names)] if len(events) > 1 else []
    for text in filter(None, found):
        hint(text, "yellow")


def sides_guard(src: Tensor, dst: Tensor) -> str | None:
    """Return a warning if sources and destinations look like two kinds that share ids.

    That is if one side has several times the ids of the other, most ids of the smaller are on both
    sides, and hardly any pair occurs in both directions.
    """
    sources, destinations = torch.unique(src), torch.unique(dst)
    few, many = sorted((sources, destinations), key=len)
    shared = int(torch.isin(few, many).sum())
    if len(few) < 2 or len(many) < UNEQUAL * len(few) or 2 * shared < len(few):
        return None
    size = int(max(sources.max(), destinations.max())) + 1
    pairs, turned = torch.unique(src * size + dst), torch.unique(dst * size + src)
    if 20 * int(torch.isin(pairs, turned).sum()) > len(pairs):
        return None
    return (
        f"{shared:,} ids are on both sides, of {len(sources):,} sources and "
        f"{len(destinations):,} destinations that are hardly one kind: --direction bipartite?"
    )


def huge_guard(x: Tensor, names: Sequence[str]) -> str | None:
    largest = x.abs().amax(0)
    found = (largest > HUGE).nonzero().flatten().tolist()
    if not found:
        return None
    return (
        f"{_listed(found, names)} as large as {float(largest[found].max()):,.6g}, beside which a "
        "model sees little else: --feature-scale auto?"
    )


def constant_guard(x: Tensor, names: Sequence[str]) -> str | None:
    """Return a warning of columns that tell nothing: all slots of one, for lists and categories."""
    is_constant = (x == x[:1]).all(0).tolist()
    columns = [name.partition("[")[0] for name in names]
    varied = {each for each, same in zip(columns, is_constant, strict=True) if not same}
    found = [*dict.fromkeys(each for each in columns if each not in varied)]
    if not found:
        return None
    way_out = "name others with --features" if varied else "leave out --features"
    listed = _listed(range(len(found)), found)
    return f"{listed} the same in all {len(x):,} events looked at: {way_out}"


def _listed(columns: Sequence[int], names: Sequence[str]) -> str:
    shown = ", ".join(names[i] for i in columns[:3])
    more = f" and {len(columns) - 3} more" if len(columns) > 3 else ""
    return f"feature {shown} is" if len(columns) == 1 else f"features {shown}{more} are"
