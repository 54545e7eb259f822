"""The process that serves: its connections, and limits on what precedes a question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tgflow.serve.answers import Answers
from tgflow.serve.app import App, ServeFigures
from tgflow.serve.endpoint import Serving
from tgflow.serve.questions import Health, Refused

GRACE_SECONDS = 5
"""Seconds for requests in progress when the server is closed."""
MAX_CONNECTIONS = 512
MAX_PIPELINED = 64
"""Most requests of a connection that wait for the answer to an earlier one."""
MAX_URL, MAX_HEAD = 8_192, 32_768
"""Most bytes of a URL, and of all headers of a request."""
_HEADER_BYTES = 64
"""Memory of a header beside its text."""
_LINGER_SECONDS = 0.3
"""Seconds for a client to read why it was refused while it still sends."""
_TOO_LONG = f"the headers have more than {MAX_HEAD:,} bytes"


def make_server(
    serving: Serving,
    answers: Answers,
    health: Callable[[], Health],
    own: Any,
    shown: Any,
    warn: Callable[[str], None],
    add_labels: Callable[[bytes], tuple[int, bytes]] | None = None,
) -> uvicorn.Server:
    """Return a server; `run([listener])` lasts until SIGTERM or SIGINT, or `should_exit`.

    The registry `own` gets the metrics of requests, `shown` is exported; the rest as in `App`.
    """
    settings = uvicorn.Config(
        App(serving, answers, health, ServeFigures(own), shown, warn, add_labels),
        http=partial(_Connection, serving.timeout),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(settings)


class _Connection(HttpToolsProtocol):
    """HTTP protocol that limits connections, request heads, and the time for them.

    The parser collects unfinished headers, so bytes are counted as they arrive.
    """

    def __init__(self, seconds: float, **given: Any) -> None:
        super().__init__(**given)
        self._seconds = seconds
        self._refused = Refused(400, "this is not HTTP")
        self._head = self._unparsed = 0
        """Size of the headers so far, and bytes since the last complete part of a request."""
        self._is_ending = False
        self._end: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, f"there are {MAX_CONNECTIONS:,} connections already; ask again later")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD and not self._is_ending:
            self._refuse(431, _TOO_LONG)
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ConnectionError("too many requests at once")

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL:
            self._refused = Refused(414, f"the URL has more than {MAX_URL:,} bytes")
            raise ConnectionError(self._refused.detail)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + _HEADER_BYTES
        if self._head > MAX_HEAD:
            self._refused = Refused(431, _TOO_LONG)
            raise ConnectionError(self._refused.detail)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not accept, or a method above."""
        self._refuse(self._refused.status, self._refused.detail)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self._seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def timeout_keep_alive_handler(self) -> None:
        self._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timeout when the head of a request is awaited."""
        if self._is_ending or (self.cycle is not None and not self.cycle.response_complete):
            self._stop()
        elif self._end is None:
            self._end = self.loop.call_later(self._seconds, self._late)

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _late(self) -> None:
        if self._unparsed:
            self._refuse(408, f"the headers did not arrive within {self._seconds:g} s")
        else:
            self._drop()

    def _refuse(self, status: int, detail: str) -> None:
        """Answer unless an earlier request still waits, and close the connection."""
        self._is_ending = True
        self._stop()
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete):
            self._drop()
            return
        body = Refused(status, detail).body
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.flow.pause_reading()
        self.loop.call_later(_LINGER_SECONDS if self._unparsed else 0, self._drop)

    def _drop(self) -> None:
        """Close the connection, also if the client does not read what was sent."""
        self.transport.close()
        self.loop.call_later(self._seconds, self.transport.abort)
