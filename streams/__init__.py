"""Event sources: files, folders, in-memory tables and Kafka topics; playback in real time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.streams import datasets as datasets
    from tgflow.streams.decorators import playback as playback
    from tgflow.streams.decorators import rebatch as rebatch
    from tgflow.streams.errors import StreamError as StreamError
    from tgflow.streams.files.reader import FileSource as FileSource
    from tgflow.streams.open import EventSource as EventSource
    from tgflow.streams.open import open_stream as open_stream
    from tgflow.streams.options import StreamOptions as StreamOptions
    from tgflow.streams.source import Source as Source
    from tgflow.streams.write import write_events as write_events

__all__, __getattr__, __dir__ = lazy_names(__name__)
