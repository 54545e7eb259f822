"""Sections of the settings, where possible the library's own dataclasses.

Imports neither torch nor pyarrow, as the command line's help is generated from it. A model's own
settings are the dataclass of that model (see `validate_model`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Le
from pydantic import ConfigDict

from tgflow.base.choices import (
    ContinualProtocol,
    Direction,
    GraphPlacement,
    OfflineProtocol,
    Precision,
    Preset,
)
from tgflow.base.secret import check_options
from tgflow.base.setting import (
    EXPERT,
    Checked,
    Duration,
    Effect,
    Setting,
    Size,
    Timeout,
    check_text,
)
from tgflow.base.units import parse_bytes, ticks_in
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.kafka.config import CodecName, KafkaClientConfig
from tgflow.streams.options import StreamOptions
from tgflow.streams.rows.schema import MOST_LABELS, Checks
from tgflow.train.config import ContinualConfig, OfflineConfig, Reuse, TrainingConfig
from tgflow.train.tasks.config import TaskConfig

if TYPE_CHECKING:
    from tgflow.graph.log import Horizon


@dataclass(frozen=True, kw_only=True)
class _Address:
    path: Annotated[str, Setting(flags=("--stream", "--data", "-s"), resume="from_now")] = ""
    """File or folder (CSV, Parquet, Arrow, JSONL; .gz), - for stdin, or kafka://HOST/TOPIC."""


@dataclass(frozen=True, kw_only=True)
class StreamConfig(StreamOptions, _Address):
    """Source of the events and read options."""

    columns: str | None = None
    features: list[str] | None = None
    categorical: list[str] | None = None
    sort: bool = False
    """Read all events first and sort them by time."""
    follow: Annotated[bool, Setting(live=True, resume="any_time")] = False
    """Read on as the file grows, or as files are moved to the folder, until the run is stopped."""
    limit: Annotated[int, Ge(1), Setting(resume="any_time")] | None = None
    """Stop after this many events."""
    speed: Annotated[float, Gt(0), Setting(resume="any_time")] | None = None
    """Play at this multiple of real time; unset: at full speed."""
    event_id: Annotated[str | None, Setting(live=True, resume="from_now")] = None
    """Column of an id used to drop repeated events."""
    codec: Annotated[CodecName, Setting(live=True)] = "json"
    """Kafka: record encoding; arrow holds many edges per record."""
    until_end: Annotated[bool, Setting(live=True, resume="any_time")] = False
    """Kafka: stop at the topic's end as of the start of the run, also after a crash and a resume;
    resuming a run that stopped there reads to the end as of then."""


ScaleKind = Literal["auto", "standard", "log", "none"]


_ROLES = ("event_id", "src", "dst", "t", "label", "time")


@dataclass(frozen=True, kw_only=True)
class LabelsConfig(Checked):
    """Labels that come after their events."""

    stream: Annotated[str | None, Setting(flags=("--label-stream",))] = None
    """File, folder or kafka://HOST/TOPIC of labels that come after their events, with the columns
    of the event (--event-id if given, else source, destination and time), of the label (--target),
    and label_time, when it came. Files are placed among the events by that time, topics and what
    --follow reads as they arrive."""
    roles: Annotated[Mapping[str, str], Setting(flags=("--label-column",))] = field(
        default_factory=dict
    )
    """Other name of one of its columns as ROLE=NAME, with the role event_id, src, dst, t, label or
    time (label_time); may be repeated."""
    by: Annotated[Literal["id", "edge"] | None, EXPERT] = None
    """How labels name their events: by id, or by edge (source, destination and time); unset: by id
    with event_id, which then must be given from the first event on."""
    token: Annotated[str | None, Setting(flags=("--label-token",))] = None
    """Token of clients that add labels by POST /labels to a run with --serve, as env:NAME or
    file:PATH; unset: none can."""
    max_waiting: Annotated[int, Ge(0), EXPERT] = 100_000
    """Maximum labels that wait for events that have not come; further ones are bad rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := sorted(self.roles.keys() - {*_ROLES}):
            known = ", ".join(map(repr, _ROLES))
            raise ValueError(f"there is no role {wrong[0]!r}; roles are {known}")
        if self.token is not None:
            check_options({"token": self.token})

    @property
    def are_given(self) -> bool:
        """Whether labels may come after their events."""
        return self.stream is not None or self.token is not None


@dataclass(frozen=True, kw_only=True)
class GraphConfig(Checked):
    """Mapping of events to edges."""

    direction: Direction = "undirected"
    """Direction of edges; bipartite: sources and destinations are separate name spaces."""
    feature_scale: ScaleKind = "auto"
    """Scale features by the events so far: standard, log (signed logarithm), auto (log for skewed
    columns) or none, which dyglib/1, tgbl/1 and tkgl/1 set."""
    node_features: Annotated[str | None, Setting(resume="any_time")] = None
    """File of node features, one row per node, keyed by the stream's ids: CSV, TSV, JSON lines,
    Parquet or Arrow. Nodes without a row get --fill-missing, or are an error."""
    node_id: Annotated[str, Setting(resume="any_time", expert=True)] = "id"
    """Its id column."""
    node_columns: list[str] | None = None
    """Its feature columns, each one a name or a prefix such as f*; unset: all others."""
    node_side: Annotated[str | None, Setting(resume="any_time", expert=True)] = None
    """Its column of src or dst, where sources and destinations have ids of their own."""
    node_types: Annotated[str | None, Setting(resume="any_time")] = None
    """File of node types with columns id and type: random negatives of an event have the type of
    its destination. Nodes without a row have a type of their own."""
    node_types_digest: Annotated[str | None, Setting(resume="any_time", expert=True)] = None
    """Digest of that file, set at the start: a resumed run refuses another file."""
    device_budget: Annotated[Size | None, Setting(resume="any_time", expert=True)] = None
    """GPU: its memory for the newest neighbors, such as 8GB; older ones move to host memory."""
    horizon: Annotated[Duration | None, Setting(resume="from_now")] = None
    """Stream time after which events are forgotten, such as 90d, in steps of a sixteenth of it."""
    horizon_events: Annotated[Annotated[int, Ge(16)] | None, Setting(resume="from_now")] = None
    """Likewise the number of events, such as 5000000; whichever is less counts."""
    table: Annotated[GraphPlacement, Setting(flags=("--graph-table",), resume="any_time")] = "host"
    """Placement of neighbors, log and counts: host memory; or disk, in files of the run directory,
    for a graph larger than memory of which most is rarely read."""

    def horizon_in(self, unit: str) -> Horizon | None:
        """Return how much of the past batches see, in ticks of 1 `unit`; None: all."""
        if self.horizon is None and self.horizon_events is None:
            return None
        from tgflow.graph.log import Horizon  # here: settings are read without torch

        ticks = None if self.horizon is None else floor(ticks_in(self.horizon, unit))
        return Horizon(self.horizon_events, ticks)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model: its name, the settings that most models share, and its own."""

    name: Annotated[str, Setting(flags=("--model", "-m"))] = "tgn+pairs"
    """tgn, tgat, jodie, graphmixer, or these with +pairs (tgn+pairs, tgat+pairs, jodie+pairs,
    graphmixer+pairs) to read pair history; dygformer, tpnet, craft, counts; baselines recency,
    recurrency, poptrack, edgebank, edgebank-tw; or your own, only by this flag:
    path/to/file.py:Class or package.module:Class."""
    dim: Annotated[int, Ge(1)] | None = None
    """Width of memory, embedding and time encoding; unset: the model's default (100)."""
    neighbors: Annotated[int, Ge(1)] | None = None
    """Neighbors per hop; unset: the paper's (tgn 10, tgat 20)."""
    precision: Annotated[Precision, Setting(resume="from_now")] = "fp32"
    """Matrix products: fp32; or the faster bf16, on a CPU with AVX512_BF16, which rounds factors to
    7 bits, and tf32, on a GPU, which rounds them to 10."""
    settings: Annotated[Mapping[str, Any], Setting(flags=("--model-set",))] = field(
        default_factory=dict
    )
    """Any other setting of the model as KEY=VALUE, such as layers=2, heads=2, dropout=0.1 or
    memory_updater=rnn; may be repeated. In a file: a key of [model]."""


_Policy = Literal["lru", "lfu", "fifo", "belady"]
Placement = Literal["host", "disk", "auto", "device", "uva"]
FILED = ("disk", "auto")
"""Placements that may use a file."""

_Protocol = Literal[ContinualProtocol, OfflineProtocol]
_Rate = Annotated[Annotated[float, Gt(0)] | None, Setting(flags=("--learning-rate", "--lr"))]
_Seed = Annotated[Annotated[int, Ge(0)] | None, EXPERT]


@dataclass(frozen=True, kw_only=True)
class LearningConfig(OfflineConfig, ContinualConfig):
    """Settings of the continual and the offline trainer; each of them reads its own."""

    protocol: _Protocol | None = None  # type: ignore[assignment]
    """Named protocol, which sets defaults, and deviations are printed: prequential/1 for run;
    dyglib/1, tgbl/1 or tkgl/1, which train offline, in epochs, for train; any for compare."""
    learning_rate: _Rate = None  # type: ignore[assignment]
    """Learning rate of the optimizer; unset: 0.001, in offline training 0.0001."""
    data_seed: _Seed = None  # type: ignore[assignment]
    """Seed of negatives, replay, sampled neighbors and new nodes, shared by compared runs; unset:
    the seed, offline 0."""

    def of(self, kind: type[TrainingConfig], *, without: bool) -> dict[str, Any]:
        """Return the settings of a trainer that are set, `without` the protocol of the other."""
        named = {each.name: getattr(self, each.name) for each in fields(kind)}
        named |= {"protocol": None} if without else {}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TablesConfig(Checked):
    """Placement of edge features, and their cache."""

    edge_table: Placement | None = None
    """Placement of edge features: host memory; disk, in a file; auto, in memory up to edge_budget
    and then in a file, on a GPU in its memory first; device or uva, GPU memory or mapped host
    memory; unset: host, or auto on a GPU."""
    edge_budget: Annotated[Size | None, EXPERT] = None
    """auto: memory for rows, such as 8GiB; unset: all available, half of a GPU's free memory."""
    edge_path: str | None = None
    """disk, auto: the file; unset: edge-x.rows in the run directory."""
    edge_cache: str | None = None
    """Size of the cache, such as 256MiB; train: also a share, such as 10%."""
    cache_policy: Annotated[_Policy | None, EXPERT] = None
    """Policy of a cache in host memory; belady, for train, plans ahead; unset: the best available
    (run lru, train belady; clock on a GPU)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.edge_cache
        if size is not None and not size.endswith("%"):
            check_text("edge_cache", size, parse_bytes)
        elif size is not None:
            share = float(size[:-1]) if re.fullmatch(r"\d*\.?\d+%", size) else 0.0
            if not 0 < share <= 100:
                text = "edge_cache: a share of the rows must be above 0% and at most 100%, got "
                raise ValueError(f"{text}{size!r}")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run itself."""

    out: Annotated[str | None, Setting(flags=("--out", "-o"))] = None
    """Run directory; unset: runs/STREAM-MODEL."""
    share_files: Annotated[bool, EXPERT] = False
    """Give the run's files the permissions of the umask; unset: only their owner can read them, as
    they hold rows of the stream."""
    threads: Annotated[int, Ge(1)] | None = None
    """CPU threads of a rank; unset: one per core at the start, less one for each replica, divided
    by the ranks of the host."""
    device: str = "cpu"
    """Device of model, memory and graph: cpu, cuda, or cuda:N for the Nth GPU."""
    capture: Annotated[bool, EXPERT] = True
    """GPU: replay steps of recurring shapes as CUDA graphs."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be cpu, cuda or cuda:N, got {self.device!r}")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """Checkpoints, from which a run resumes after a crash."""

    checkpoint_every: Annotated[float, Ge(0)] = 60.0
    """Seconds between checkpoints; 0: none by time."""
    checkpoint_batches: Annotated[int, Ge(1)] | None = None
    """Also every N micro-batches."""
    keep: Annotated[int, Ge(1), EXPERT] = 3
    """Latest checkpoints to keep."""
    log: Annotated[bool, Setting(resume="fixed")] = True
    """Write arriving events to a log first, so that a resume need not read them again."""
    keep_log: Annotated[bool, EXPERT] = False
    """Keep the whole log; unset: segments that no kept checkpoint needs are removed."""
    max_checkpoint_bytes: Annotated[Size | None, EXPERT] = None
    """Maximum size of a checkpoint, such as 8GiB."""
    strict_resume: Annotated[bool, EXPERT] = False
    """Refuse to resume if bits could differ: threads, versions."""

    @property
    def most_bytes(self) -> int | None:
        limit = self.max_checkpoint_bytes
        return None if limit is None else parse_bytes(limit)


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """Initial state of a run."""

    init_from: str | None = None
    """Start with the model, memory, events and ids of this run directory (of train or run); its
    settings of columns, features, model and task become the defaults."""


@dataclass(frozen=True, kw_only=True)
class ScoresConfig(Checked):
    """Scores of events, predicted before they are learned."""

    to: Annotated[str | None, Setting(flags=("--scores",), resume="any_time")] = None
    """Write each event's score here: .parquet, .csv, .tsv, .jsonl or kafka://HOST/TOPIC; with
    {day} in the name, such as scores-{day}.parquet, to a file for each UTC day of the events."""
    alert_budget: Annotated[int, Ge(1), Le(100_000)] | None = None
    """Raise alerts for events of high label probability, at most N a UTC day of the events, above a
    threshold by the scores of up to 7 earlier days."""
    keep_days: Annotated[int, Ge(1), Setting(resume="any_time", expert=True)] | None = None
    """Latest files of {day} to keep; unset: all."""
    max_wait: Timeout | None = None
    """Maximum wait of an event for its micro-batch to fill, such as 1s, or none; unset: 250ms for
    --follow and Kafka without --until-end, else none."""

    @property
    def are_made(self) -> bool:
        """Whether events are scored one by one."""
        return self.to is not None or self.alert_budget is not None


@dataclass(frozen=True, kw_only=True)
class OperateConfig(Checked):
    """Monitoring and limits of a run."""

    metrics_port: Annotated[int, Ge(0), Le(65_535)] | None = None
    """Serve Prometheus metrics on this port; 0: any free one."""
    metrics_host: Annotated[str, EXPERT] = "127.0.0.1"
    """Address to serve metrics on; 0.0.0.0 for all interfaces."""
    log_format: Literal["text", "json"] = "text"
    """Messages on stderr: text, or one JSON object per line."""
    log_to: Literal["tensorboard"] | None = None
    """Also log the figures of each step or epoch in the run directory: tensorboard."""
    keep_dead_letters: Annotated[int, Ge(2), EXPERT] | None = None
    """Latest files of dead letters to keep, 64 MiB each; unset: all."""
    memory_limit: Size | None = None
    """Memory limit of the process, such as 8GiB, without mapped files: the stream pauses near it,
    the run stops at it."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else parse_bytes(self.memory_limit)


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Checked):
    """HTTP access to a run, and its limits."""

    at: Annotated[str | None, Setting(flags=("--serve",))] = None
    """Serve predictions over HTTP during training: a port, or HOST:PORT; 0: any free port."""
    token_file: Annotated[str | None, EXPERT] = None
    """File with the token that clients must send; unset: environment variable TGFLOW_SERVE_TOKEN.
    An address that other machines can reach requires one."""
    hosts: Annotated[tuple[str, ...] | None, Setting(flags=("--serve-hosts",))] = None
    """Further values of the header Host that are answered, as of a proxy or probe: HOST or
    HOST:PORT, or "*" for any; may be given several times. Else only the server's address is."""
    max_body: ClassVar[int] = 1 << 20
    """Maximum bytes of a request."""
    max_pairs: ClassVar[int] = 20_000
    """Maximum pairs and nodes per request; top-k counts each candidate of each source."""
    max_waiting: ClassVar[int] = 128
    """Maximum concurrent requests; further ones get status 429."""
    timeout: Annotated[Duration, EXPERT] = "10s"
    """Seconds to receive and answer a request."""
    replicas: Annotated[int, Ge(1), Setting(flags=("--replicas",))] = 1
    """Processes that answer, each with a copy of the run."""
    max_lag: Annotated[int, Ge(0), EXPERT] | None = None
    """Events behind the run from which GET /ready gives status 503; unset: any number."""
    parameters_every: Annotated[Duration, Setting(expert=True, live=True)] = "500ms"
    """Time after which answers have new parameters; those of each micro-batch have its events."""
    ring: Annotated[Size, Setting(expert=True, live=True)] = "256MiB"
    """Shared memory for what replicas have not read yet."""
    stay: Annotated[bool, Setting(expert=True, live=True)] = False
    """Serve on after the end of the stream, until a signal."""


Held = Literal["replicated", "sharded"]
"""Whether each rank holds a replica, or a shard and queries the others."""


@dataclass(frozen=True, kw_only=True)
class RanksConfig(Checked):
    """Communication of ranks, and placement of their state."""

    graph: Annotated[Held, Setting(flags=("--rank-graph",), live=True)] = "replicated"
    """Neighbors and counts: replicated on every rank, or sharded: each rank has those of its own
    nodes, and of its share of other keys."""
    memory: Annotated[Held, Setting(flags=("--rank-memory",), live=True)] = "replicated"
    """Node memory, likewise; sharded sends the rows that are read."""
    timeout: Annotated[float, Gt(0), EXPERT] = 300.0
    """Timeout in seconds for all ranks to join, and later for each to respond."""
    interface: Annotated[str | None, EXPERT] = None
    """Network interface that connects the ranks, such as eth1; unset: none, as all are on this
    host."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Checked):
    """A comparison of models."""

    models: Annotated[tuple[str, ...], Setting(flags=("--models", "-m"))] = ("auto",)
    """Models, comma-separated or repeated: NAME, LABEL=NAME or your own as in tgflow run -m; auto,
    or quick for baselines."""
    seeds: Annotated[int, Ge(1)] = 3
    """Number of seeds for each model that has parameters, starting at --seed."""
    frozen_at: Annotated[float, Gt(0)] | None = None
    """Also compare copies of the models that are frozen from here on: a share of the events
    below 1, or a number of events."""
    preset: Preset = "auto"
    """Settings by the kind of stream, which auto measures, or published ones for a data set of
    DyGLib; explicit settings take precedence."""
    cut_at_steps: bool | None = None
    """Also end micro-batches where the time changes, so that each has events of a single time;
    unset: chosen by the preset (discrete does)."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the settings."""

    title: str
    resume: Effect


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings, by section; each has a default except `stream.path`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    stream: Annotated[StreamConfig, Section("Stream: event source", "fixed")] = StreamConfig()
    order: Annotated[
        OrderConfig, Section("Order: late events and several partitions", "from_now")
    ] = field(default_factory=OrderConfig)
    checks: Annotated[Checks, Section("Checks: row validation", "from_now")] = field(
        default_factory=Checks
    )
    kafka: Annotated[KafkaClientConfig, Section("Kafka", "any_time")] = field(
        default_factory=KafkaClientConfig
    )
    graph: Annotated[GraphConfig, Section("Graph", "fixed")] = GraphConfig()
    model: Annotated[ModelConfig, Section("Model", "fixed_model")] = ModelConfig()
    task: Annotated[TaskConfig, Section("Task: labels to learn besides links", "fixed_model")] = (
        field(default_factory=TaskConfig)
    )
    labels: Annotated[LabelsConfig, Section("Labels that come after their events", "any_time")] = (
        LabelsConfig()
    )
    learning: Annotated[LearningConfig, Section("Learning", "from_now")] = LearningConfig()
    reuse: Annotated[Reuse, Section("Reuse: rows across batches", "from_now")] = field(
        default_factory=Reuse
    )
    compare: Annotated[CompareConfig, Section("Comparison", "fixed")] = CompareConfig()
    tables: Annotated[TablesConfig, Section("Features: placement and cache", "any_time")] = (
        TablesConfig()
    )
    run: Annotated[RunConfig, Section("Run", "any_time")] = RunConfig()
    checkpoint: Annotated[
        CheckpointConfig, Section("Checkpoints: resume after a crash", "any_time")
    ] = CheckpointConfig()
    start: Annotated[StartConfig, Section("Start", "fixed")] = StartConfig()
    scores: Annotated[ScoresConfig, Section("Scores", "from_now")] = ScoresConfig()
    operate: Annotated[OperateConfig, Section("Operation", "any_time")] = OperateConfig()
    serve: Annotated[ServeConfig, Section("Serving: HTTP", "any_time")] = ServeConfig()
    ranks: Annotated[RanksConfig, Section("Ranks: distributed training", "any_time")] = (
        RanksConfig()
    )

    def section_of(self, scheme: str | None) -> Any:
        """Return the section named like the scheme of an address; None without one."""
        return None if scheme is None else getattr(self, scheme, None)

    @property
    def has_gpu_graph(self) -> bool:
        """Whether graph, tables and caches are on the model's GPU, if it is on one."""
        return self.run.device != "cpu" and self.tables.cache_policy != "belady"

    @property
    def placement(self) -> Placement:
        """The placement of edge features; the default with a graph on a GPU is auto."""
        return self.tables.edge_table or ("auto" if self.has_gpu_graph else "host")

    def __post_init__(self) -> None:
        """Read the column of the task's target as the labels."""
        for name, default in (("reuse", Reuse()), ("task", TaskConfig())):
            if getattr(self.learning, name) != default:
                raise ValueError(f"{name} is a section of its own: [{name}]")
        if self.task.target is not None and self.stream.label is None:
            object.__setattr__(self, "stream", replace(self.stream, label=self.task.target))

    @cached_property
    def continual(self) -> ContinualConfig:
        named = self.learning.of(ContinualConfig, without=self.is_offline)
        return ContinualConfig(**named | {"task": self.task})

    @cached_property
    def offline(self) -> OfflineConfig:
        named = self.learning.of(OfflineConfig, without=not self.is_offline)
        return OfflineConfig(**named | {"reuse": self.reuse, "task": self.task})

    @property
    def positive_label(self) -> str | None:
        """The label of class 1, where the task has two classes; None without a task or of more."""
        values = self.stream.label_values or ()
        if self.task.target is None or self.task.classes not in (None, 2):
            return None
        return values[1] if len(values) == 2 else self.stream.positive_label or "1"

    @property
    def label_columns(self) -> dict[str | int, int]:
        """Labels with score columns of their own, with their numbers: the first of many."""
        values, names = self.stream.label_values or (), self.stream.label_shown
        if self.task.classes in (None, 2):
            return {}
        if names:
            return {name: i for i, name in enumerate(names[:MOST_LABELS])}
        return {number: number for number in sorted(map(int, values[:MOST_LABELS]))}

    @property
    def has_label_ids(self) -> bool:
        """Whether labels that come after their events name these by their ids."""
        return (self.labels.by or "id") == "id" and self.stream.event_id is not None

    @property
    def label_facts(self) -> dict[str, str]:
        """Column of the task's labels and the positive one, as in metrics; {} without a task."""
        facts = {"label_target": self.task.target, "label_positive": self.positive_label}
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def is_offline(self) -> bool:
        return self.learning.protocol in get_args(OfflineProtocol)
