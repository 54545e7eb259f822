"""The schema of the settings: sections of typed, described values, each with its default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tgflow.units import parse_bytes

Unit = Literal["s", "ms", "us", "ns", "m", "h", "d", "day", "tick"]
Negatives = Literal["random", "historical", "inductive"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _checked_size(size: str) -> str:
    """Return a size as it is, if it is one such as 256MiB."""
    parse_bytes(size)
    return size


def _checked_cache_size(size: str) -> str:
    """Return the size of a cache as it is, if it is one such as 256MiB or 10%."""
    if not size.endswith("%"):
        return _checked_size(size)
    try:
        share = float(size[:-1])
    except ValueError:
        share = -1.0
    if not 0 < share <= 100:
        raise ValueError(f"a share of the rows must be above 0% and at most 100%, got {size!r}")
    return size


Size = Annotated[str, AfterValidator(_checked_size)]
CacheSize = Annotated[str, AfterValidator(_checked_cache_size)]


class StreamConfig(_Section):
    """Where the events come from and how they are read."""

    path: str = Field(
        default="",
        description="File or folder (CSV, Parquet, Arrow or JSONL; also .gz), or kafka://HOST/TOPIC.",
    )
    format: Literal["csv", "tsv", "jodie", "parquet", "arrow", "jsonl"] | None = Field(
        default=None, description="Format; unset: by the name's ending."
    )
    src: str = Field(default="src", description="Column of the source node.")
    dst: str = Field(default="dst", description="Column of the destination node.")
    t: str = Field(default="t", description="Column of the time.")
    label: str | None = Field(default=None, description="Column of the edge type or label.")
    features: list[str] | None = Field(
        default=None, description="Columns of edge features, each one or a prefix as f*."
    )
    time_unit: Unit = Field(default="s", description="Unit of the time column.")
    tick_unit: Unit | None = Field(
        default=None,
        description="Unit to keep times in; finer than time_unit if they have decimals.",
    )
    sort: bool = Field(default=False, description="Read all first and sort by time.")
    limit: int | None = Field(default=None, ge=1, description="Stop after this many events.")
    speed: float | None = Field(
        default=None, gt=0, description="Play at this multiple of real time; unset: at full speed."
    )
    id_kind: Literal["int", "string"] | None = Field(
        default=None, description="What node ids are; unset: as in the first row."
    )
    event_id: str | None = Field(
        default=None, description="Column of an id by which an event that comes twice is dropped."
    )
    codec: Literal["json", "csv", "arrow"] = Field(
        default="json", description="Kafka: how records are written; arrow carries many edges each."
    )
    until_end: bool = Field(
        default=False,
        description="Kafka: stop at the end there is when the run begins, also if it is killed and "
        "resumed; resuming one that has stopped there reads to the end of that moment.",
    )


class GraphConfig(_Section):
    """How events become edges."""

    direction: Literal["undirected", "directed", "bipartite"] = Field(
        default="undirected",
        description="Who is whose neighbor; bipartite: two name spaces of ids.",
    )


class ModelConfig(_Section):
    """The model and its sizes."""

    name: str = Field(default="tgn", description="tgn, tgat, or your own as module:Class.")
    dim: int = Field(default=100, ge=1, description="Width of memory, embedding and time encoding.")
    heads: int = Field(default=2, ge=1, description="Attention heads.")
    neighbors: int | None = Field(
        default=None, ge=1, description="Neighbors per hop; unset: the paper's (tgn 10, tgat 20)."
    )
    layers: int | None = Field(
        default=None, ge=1, le=4, description="Hops; unset: the paper's (tgn 1, tgat 2)."
    )
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout while training.")


class PlanConfig(_Section):
    """How batches are made."""

    batch_size: int = Field(default=200, ge=1, description="Events per batch.")
    visibility: Literal["event", "batch"] = Field(
        default="event",
        description="What a query sees: all that is earlier, or the state at batch start.",
    )
    strategy: Literal["recent", "uniform", "window", "decayed"] | None = Field(
        default=None, description="Which neighbors are sampled; unset: as the model's paper."
    )
    span: int | None = Field(
        default=None, ge=1, description="Ticks: width of window, half-life of decayed."
    )
    mrr_negatives: int = Field(
        default=20, ge=1, description="False destinations per event to rank it among."
    )
    workers: int = Field(
        default=1, ge=0, description="Threads that prepare batches ahead; 0: none."
    )
    lookahead: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Batches to prepare ahead; auto: 4, or what pays for a cache that plans.",
    )


class TablesConfig(_Section):
    """Where edge features are kept, and the cache in front of them."""

    edge_table: Literal["host", "disk", "auto", "device", "uva"] = Field(
        default="host",
        description="Where edge features are: host memory; disk, in a file; auto, in memory up to "
        "edge_budget and then in a file; device or uva, a GPU's or what it reads in place.",
    )
    edge_budget: Size | None = Field(
        default=None,
        description="auto: memory for rows, such as 8GiB; disk: for buffers, at most 16MiB help.",
    )
    edge_path: str | None = Field(
        default=None, description="disk, auto: the file; unset: edge-x.rows in the run directory."
    )
    edge_cache: CacheSize | None = Field(
        default=None,
        description="Cache in front: its memory, such as 256MiB; train: also a share, such as 10%.",
    )
    cache_policy: Literal["lru", "lfu", "fifo", "belady"] | None = Field(
        default=None,
        description="Which rows it keeps; belady, for train, plans ahead; unset: the best there is "
        "(run lru, train belady).",
    )


class TrainConfig(_Section):
    """How the model learns."""

    learning_rate: float = Field(default=1e-3, gt=0, description="Adam's learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="Adam's weight decay.")
    grad_clip: float | None = Field(
        default=None, gt=0, description="Largest norm of all gradients."
    )
    updates: int = Field(
        default=1, ge=0, description="run: optimizer steps per micro-batch; 0: no learning."
    )
    replay_ratio: float = Field(
        default=0.5, ge=0, description="run: old events learned again per new one."
    )
    replay_horizon: int = Field(
        default=50_000, ge=1, description="run: events to look back for replay."
    )
    replay_half_life: float = Field(
        default=10_000.0, gt=0, description="run: this many events older is half as likely."
    )
    epochs: int = Field(
        default=100, ge=1, description="train: passes over the training part, at most."
    )
    patience: int = Field(
        default=20, ge=1, description="train: stop after so many epochs without a better."
    )
    val_ratio: float = Field(
        default=0.15, gt=0, lt=1, description="train: part held out to choose by."
    )
    test_ratio: float = Field(
        default=0.15, gt=0, lt=1, description="train: part held out to report."
    )
    new_node_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="train: share of nodes that training never sees."
    )
    negatives: list[Negatives] = Field(
        default=["random"],
        min_length=1,
        description="train: kinds of false destinations to test with.",
    )


class RunConfig(_Section):
    """The run itself."""

    seed: int = Field(default=0, ge=0, description="Seed of every random draw.")
    out: str | None = Field(default=None, description="Run directory; unset: runs/STREAM-MODEL.")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; unset: one per core.")


class OrderConfig(_Section):
    """How events that come out of order are put in order."""

    allowed_lateness: int = Field(
        default=0, ge=0, description="Ticks that an event may come after a later one."
    )
    late: Literal["dead_letter", "drop", "error"] | None = Field(
        default=None,
        description="What becomes of later ones; unset: error for files, dead_letter for Kafka.",
    )
    max_time_jump: int | Literal["none"] | None = Field(
        default=None,
        description="Ticks that time may jump ahead, or none for any; Kafka needs one of the two.",
    )
    time_min: int | None = Field(default=None, description="Earliest tick that is believed.")
    time_max: int | None = Field(default=None, description="Latest tick that is believed.")
    idle_timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after which a silent partition is waited for no more; unset: never.",
    )
    buffer_events: int = Field(
        default=1_000_000, ge=1, description="Events that may wait to be put in order."
    )
    buffer_bytes: Size = Field(default="256MiB", description="Memory that they may take.")
    dedup_window: int | None = Field(
        default=None,
        ge=0,
        description="Last event ids among which a repeat is found; unset: 100000 with event_id.",
    )

    @property
    def jump(self) -> int | None:
        """`max_time_jump` in ticks, None for any."""
        return None if self.max_time_jump == "none" else self.max_time_jump


class ChecksConfig(_Section):
    """What a row must be to be an event; one that is not becomes a dead letter."""

    max_bad_ratio: float = Field(
        default=0.05, ge=0, le=1, description="Share of bad rows, of the last 10,000, that stops."
    )
    max_node_id: int | None = Field(
        default=None, ge=0, description="Largest integer node id; unset: any int64."
    )
    max_abs: float | None = Field(
        default=None, gt=0, description="Largest absolute value of a feature."
    )
    max_record_bytes: Size = Field(
        default="1MiB", description="Longest record of a topic, or line of a text file."
    )
    unknown_keys: Literal["ignore", "reject"] = Field(
        default="ignore", description="JSON: what to do with keys that nobody named."
    )


class KafkaConfig(_Section):
    """The connection to Kafka."""

    options: list[str] = Field(
        default=[], description="Settings of kafka-python, each as KEY=VALUE; may be repeated."
    )
    on_expired: Literal["fail", "skip"] = Field(
        default="fail", description="When retention took what comes next: fail, or note a gap."
    )
    max_outage: float = Field(
        default=600.0, gt=0, description="Seconds to try to reach a broker before giving up."
    )
    group_id: str | None = Field(
        default=None, description="Group to report the position to, for lag monitors only."
    )
    dead_letter_topic: str | None = Field(
        default=None, description="Topic that also gets the dead letters."
    )


class CheckpointConfig(_Section):
    """How a run is kept, so that it can go on after anything."""

    checkpoint_every: float = Field(
        default=60.0, ge=0, description="Seconds between checkpoints; 0: none by time."
    )
    checkpoint_batches: int | None = Field(
        default=None, ge=1, description="Also every so many micro-batches."
    )
    keep: int = Field(default=3, ge=1, description="Latest checkpoints to keep.")
    keep_every: int = Field(
        default=10, ge=1, description="Write each so-manieth whole, sharing no file with others."
    )
    log: bool = Field(
        default=True,
        description="Write arriving events to a log first, so that none must be read again.",
    )
    sync_ms: float = Field(
        default=100.0, ge=0, description="Milliseconds after which the log is on the disk."
    )
    max_checkpoint_bytes: Size | None = Field(
        default=None, description="Refuse checkpoints that are larger, such as 8GiB."
    )
    strict_resume: bool = Field(
        default=False, description="Refuse to go on where bits could differ: threads, versions."
    )


class OperateConfig(_Section):
    """How a run is watched and limited."""

    metrics_port: int | None = Field(
        default=None, ge=0, le=65_535, description="Serve Prometheus metrics here; 0: any free."
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address to serve them at; 0.0.0.0 for all of the machine's.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Messages on stderr for people, or one JSON object a line."
    )
    memory_limit: Size | None = Field(
        default=None, description="Memory of the process, such as 8GiB: pause near it, stop at it."
    )
    memory_grace: float = Field(
        default=30.0, ge=0, description="Seconds at the limit before the run stops."
    )
    on_nan: Literal["stop", "skip"] = Field(
        default="stop", description="At a loss that is not finite: stop, or leave the update out."
    )


class Config(_Section):
    """All settings, by section; each has a default except `stream.path`."""

    stream: StreamConfig = StreamConfig()
    order: OrderConfig = OrderConfig()
    checks: ChecksConfig = ChecksConfig()
    kafka: KafkaConfig = KafkaConfig()
    graph: GraphConfig = GraphConfig()
    model: ModelConfig = ModelConfig()
    plan: PlanConfig = PlanConfig()
    tables: TablesConfig = TablesConfig()
    train: TrainConfig = TrainConfig()
    run: RunConfig = RunConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    operate: OperateConfig = OperateConfig()
