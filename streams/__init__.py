"""Where events come from: files, folders, tables in memory, and their playback in real time."""

from typing import TYPE_CHECKING

from tgflow.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.streams.clock import Clock, SystemClock
    from tgflow.streams.errors import StreamError
    from tgflow.streams.open import open_files, open_stream
    from tgflow.streams.pacing import playback, rebatch
    from tgflow.streams.source import EventSource, Source
    from tgflow.streams.write import write_events

__getattr__ = lazy_names(
    __name__,
    {
        "Clock": "clock",
        "EventSource": "source",
        "Source": "source",
        "StreamError": "errors",
        "SystemClock": "clock",
        "open_files": "open",
        "open_stream": "open",
        "playback": "pacing",
        "rebatch": "pacing",
        "write_events": "write",
    },
)

__all__ = [
    "Clock",
    "EventSource",
    "Source",
    "StreamError",
    "SystemClock",
    "open_files",
    "open_stream",
    "playback",
    "rebatch",
    "write_events",
]
