"""The process that speaks HTTP: `python -m tgflow.serve.gateway LISTENER LINK`, two descriptors."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection

import uvicorn
from prometheus_client import CollectorRegistry

from tgflow.serve.app import make_app
from tgflow.serve.figures import ServeFigures
from tgflow.serve.guard import Guard
from tgflow.serve.link import Begin, Call, Cancel, Link, Ready, Reply, Warned, What
from tgflow.serve.patience import patient_protocol
from tgflow.serve.refused import Refused

_GRACE_SECONDS = 5
"""For requests that are being answered when the server is closed."""
_LOOK_SECONDS = 0.1
"""Between two looks at whether requests are taken, or still answered."""


class Gateway:
    """Takes requests, has them answered by the process that has the model, and sends the answers.

    Args:
        listener: Takes connections.
        link: To the process that has the model.
    """

    def __init__(self, listener: socket.socket, link: Link) -> None:
        self._link, self._numbers = link, itertools.count()
        self._waiting: dict[int, Future[bytes]] = {}
        begin: Begin = link.receive()
        registry = CollectorRegistry()
        app = make_app(self._ask, registry, begin.name)
        figures = ServeFigures(registry)
        settings = uvicorn.Config(
            Guard(app, begin.limits, begin.token, figures, self._warn),
            http=patient_protocol(begin.limits.timeout),
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
        """Serve until the other process says so, or is no more."""
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
    """Serve on a listener and a link that were inherited."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the process that has the model
        signal.signal(number, signal.SIG_IGN)
    listener, link = map(int, sys.argv[1:])
    Gateway(socket.socket(fileno=listener), Link(Connection(link))).run()


if __name__ == "__main__":
    main()
