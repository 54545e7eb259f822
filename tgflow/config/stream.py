"""The settings of a stream: where events come from, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from tgflow.setting import Setting
from tgflow.streams.kafka.config import CodecName
from tgflow.streams.options import StreamOptions


@dataclass(frozen=True, kw_only=True)
class _Address:
    path: Annotated[str, Setting(flags=("--stream", "--data", "-s"), resume="from_now")] = ""
    """File or folder (CSV, Parquet, Arrow, JSONL; .gz), - for stdin, or kafka://HOST/TOPIC."""


@dataclass(frozen=True, kw_only=True)
class StreamConfig(StreamOptions, _Address):
    """Where the events come from and how they are read."""

    columns: str | None = None
    features: list[str] | None = None
    sort: bool = False
    """Read all events first and sort them by time."""
    follow: Annotated[bool, Setting(live=True, resume="any_time")] = False
    """Read on as the file grows, or as files are moved to the folder, until the run is stopped."""
    limit: Annotated[int, Ge(1), Setting(resume="any_time")] | None = None
    """Stop after this many events."""
    speed: Annotated[float, Gt(0), Setting(resume="any_time")] | None = None
    """Play at this multiple of real time; unset: at full speed."""
    event_id: Annotated[str | None, Setting(live=True, resume="from_now")] = None
    """Column of an id by which an event that comes twice is dropped."""
    codec: Annotated[CodecName, Setting(live=True)] = "json"
    """Kafka: how records are written; arrow holds many edges per record."""
    until_end: Annotated[bool, Setting(live=True, resume="any_time")] = False
    """Kafka: stop at the end that the topic has when the run starts, also after a crash and a
    resume; resuming a run that stopped there reads to the end of that moment."""
