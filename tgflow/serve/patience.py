"""How long a client may take to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def patient_protocol(seconds: float) -> Any:
    """Return what makes protocols of HTTP for uvicorn, whose clients are given up if slow to ask.

    Args:
        seconds: That a client has for the headers of its next request.
    """

    def made(**given: Any) -> asyncio.Protocol:
        return _Patience(HttpToolsProtocol(**given), seconds)

    return made


class _Patience(asyncio.Protocol):
    """A protocol of HTTP whose client has so long to say what it wants, or the connection ends."""

    def __init__(self, inner: Any, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds
        self._transport: asyncio.BaseTransport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)
        self._watch()

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop()
        self._inner.connection_lost(error)

    def _watch(self) -> None:
        """Let the time run while the headers of a request are awaited."""
        cycle = self._inner.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop()
        elif self._end is None and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(self._seconds, self._transport.close)

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
