"""Where events come from: files, folders, tables in memory, and their replay in real time."""

from tgflow.streams.errors import StreamError
from tgflow.streams.open import open_files, open_stream
from tgflow.streams.pace import Clock, SystemClock, rebatch, replay
from tgflow.streams.source import EventSource, Source
from tgflow.streams.write import write_events

__all__ = [
    "Clock",
    "EventSource",
    "Source",
    "StreamError",
    "SystemClock",
    "open_files",
    "open_stream",
    "rebatch",
    "replay",
    "write_events",
]
