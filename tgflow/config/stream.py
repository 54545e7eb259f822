"""The settings of a stream: where events come from, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from tgflow.setting import Setting
from tgflow.streams.kafka.config import CodecName
from tgflow.streams.rows.schema import IdKind

Unit = Literal["s", "ms", "us", "ns", "m", "h", "d", "day", "tick"]
FileFormat = Literal[
    "csv", "tsv", "parquet", "arrow", "jsonl", "jodie", "dyglib", "snap", "edges", "konect", "npz",
    "pt",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """Where the events come from and how they are read."""

    path: Annotated[str, Setting(flags=("--stream", "--data", "-s"), resume="from_now")] = ""
    """File or folder (CSV, Parquet, Arrow, JSONL; .gz), - for stdin, or kafka://HOST/TOPIC."""
    format: FileFormat | None = None
    """Format; unset: by the name's ending."""
    header: bool | None = None
    """Whether the first line of delimited text names its columns; unset: unless --columns does."""
    columns: str | None = None
    """Names of the columns where no header has them, such as src,dst,_,t; _ is not read."""
    sep: str | None = None
    """What stands between two values: a character, tab, or space for any number of them."""
    comment: str | None = None
    """What lines of text begin with that are no rows, such as #."""
    src: str = "src"
    """Column of the source node."""
    dst: str = "dst"
    """Column of the destination node."""
    t: str = "t"
    """Column of the time."""
    label: str | None = None
    """Column of the edge type or label."""
    weight: str | None = None
    """Column of weights, at least 0: the training loss of each event is multiplied by its weight;
    unset: 1."""
    features: list[str] | None = None
    """Edge feature columns: names, or a prefix such as f*."""
    fill_missing: float | None = None
    """What features are that are empty, null or NaN, and those of nodes without a row of their own;
    unset: such a row is refused."""
    time_unit: Unit | None = None
    """Unit of numeric times; unset: detected from the first rows. ISO 8601 times need none."""
    tick_unit: Unit | None = None
    """Unit to keep times in; finer than time_unit if they have decimals; unset: time_unit, or what
    the first dates need."""
    sort: bool = False
    """Read all events first and sort them by time."""
    follow: Annotated[bool, Setting(live=True, resume="any_time")] = False
    """Read on as the file grows, or as files are moved to the folder, until the run is stopped."""
    limit: Annotated[int, Ge(1), Setting(resume="any_time")] | None = None
    """Stop after this many events."""
    speed: Annotated[float, Gt(0), Setting(resume="any_time")] | None = None
    """Play at this multiple of real time; unset: at full speed."""
    id_kind: IdKind | None = None
    """Type of the node ids; unset: as in the first row."""
    event_id: Annotated[str | None, Setting(live=True, resume="from_now")] = None
    """Column of an id by which an event that comes twice is dropped."""
    codec: Annotated[CodecName, Setting(live=True)] = "json"
    """Kafka: how records are written; arrow holds many edges per record."""
    until_end: Annotated[bool, Setting(live=True, resume="any_time")] = False
    """Kafka: stop at the end that the topic has when the run starts, also after a crash and a
    resume; resuming a run that stopped there reads to the end of that moment."""

    @property
    def unit(self) -> str:
        """What numbers of times count: `time_unit`, or s where nothing says it."""
        return self.time_unit or "s"

    @property
    def tick(self) -> str:
        """What a tick is: `tick_unit`, or the unit of times where nothing says it."""
        return self.tick_unit or self.unit
