"""The HTTP process: `python -m tgflow.serve.gateway LISTENER LINK`, two file descriptors."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tgflow.serve.app import make_app
from tgflow.serve.guard import Guard, ServeFigures
from tgflow.serve.link import Begin, Call, Cancel, Link, Ready, Reply, Warned, What
from tgflow.serve.questions import Refused


class _Patience(HttpToolsProtocol):
    """HTTP protocol that closes a connection whose client sends its headers too slowly."""

    def __init__(self, seconds: float, **given: Any) -> None:
        super().__init__(**given)
        self._seconds = seconds
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timeout when the headers of a request are awaited."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._end is None:
            self._end = self.loop.call_later(self._seconds, self.transport.close)

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


_GRACE_SECONDS = 5
"""Seconds for requests in progress when the server is closed."""
_LOOK_SECONDS = 0.1
"""Seconds between checks whether requests are accepted or still in progress."""


class Gateway:
    """Passes requests to the process with the model, and sends its answers."""

    def __init__(self, listener: socket.socket, link: Link) -> None:
        self._link, self._numbers = link, itertools.count()
        self._waiting: dict[int, Future[bytes]] = {}
        begin: Begin = link.receive()
        registry = CollectorRegistry()
        app = make_app(self._ask, registry, begin.name)
        figures = ServeFigures(registry)
        settings = uvicorn.Config(
            Guard(app, begin.limits, begin.token, figures, self._warn),
            http=partial(_Patience, begin.limits.timeout),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="http", daemon=True
        )

    def run(self) -> None:
        """Serve until the other process requests the end, or has ended."""
        self._thread.start()
        was_ready = False
        try:
            while self._thread.is_alive():
                if self._server.started and not was_ready:
                    self._link.send(Ready())
                    was_ready = True
                message = self._link.receive(_LOOK_SECONDS)
                if isinstance(message, Reply):
                    self._settle(message)
                elif message is not None:
                    self._server.should_exit = True
        except EOFError:
            return

    async def _ask(self, what: What) -> bytes:
        number, future = next(self._numbers), Future[bytes]()
        self._waiting[number] = future
        try:
            self._link.send(Call(number, what))
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._link.send(Cancel(number))
            raise
        finally:
            del self._waiting[number]

    def _settle(self, message: Reply) -> None:
        future = self._waiting.get(message.number)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(message.answer, Refused):
            future.set_exception(message.answer)
        else:
            future.set_result(message.answer)

    def _warn(self, text: str) -> None:
        self._link.send(Warned(text))


def main() -> None:
    """Serve on an inherited listener and link."""
    for number in (signal.SIGINT, signal.SIGTERM):  # handled by the process with the model
        signal.signal(number, signal.SIG_IGN)
    listener, link = map(int, sys.argv[1:])
    Gateway(socket.socket(fileno=listener), Link(Connection(link))).run()


if __name__ == "__main__":
    main()
