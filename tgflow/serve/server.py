"""A predictor over HTTP, on threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from tgflow.config.schema import ServeConfig
from tgflow.serve.answers import Answers
from tgflow.serve.endpoint import Endpoint
from tgflow.serve.predictor import Predictor
from tgflow.units import parse_seconds

GRACE_SECONDS = 5
"""For requests that are being answered when the server is closed."""


class Server:
    """Serves a predictor from when it is made until it is closed; a context manager.

    One thread reads requests and writes answers, and another one answers them, see `Answers`.

    Args:
        predictor: What answers.
        endpoint: Where to listen.
        token: What clients must have; None: nothing.
        config: The limits.
        name: What is served.
        registry: Of prometheus-client: gets the server's metrics, and is shown with them.
        state: Returns how the run is.
        warn: Hears of faults, from the server's thread.

    Raises:
        ModuleNotFoundError: If FastAPI, uvicorn, httptools or prometheus-client is not installed.
        OSError: If the address is taken.
    """

    def __init__(
        self,
        predictor: Predictor,
        endpoint: Endpoint,
        token: str | None,
        config: ServeConfig,
        name: str,
        *,
        registry: Any,
        state: Callable[[], str],
        warn: Callable[[str], None],
    ) -> None:
        check_installed()
        import uvicorn
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        from tgflow.serve.app import make_app
        from tgflow.serve.figures import ServeFigures
        from tgflow.serve.guard import Guard

        socket = endpoint.listen()
        self.endpoint = Endpoint(endpoint.host, socket.getsockname()[1])
        """Where it listens."""
        self._answers = Answers(predictor, config.max_pairs)
        app = make_app(predictor, self._answers, registry, state, name)
        figures = ServeFigures(registry, lambda: predictor.position)
        seconds = parse_seconds(config.timeout)

        def patient(**given: Any) -> Any:
            return _Patience(HttpToolsProtocol(**given), seconds)

        protocol: Any = patient  # uvicorn calls it, as it would a class
        settings = uvicorn.Config(
            Guard(app, config, token, figures, warn),
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, args=([socket],), name="serve", daemon=True
        )
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Take no more requests, and answer those that there are, as far as that takes seconds."""
        self._server.should_exit = True
        self._thread.join()
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Patience(asyncio.Protocol):
    """A protocol of HTTP whose client has so long to say what it wants, or the connection ends.

    What it sends after that is for whoever reads the body.
    """

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


def check_installed() -> None:
    """Raise ModuleNotFoundError, with the way out, unless what a server needs is installed."""
    try:
        import fastapi
        import httptools
        import prometheus_client
        import uvicorn
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"serving needs {error.name}; pip install 'tgflow-learn[serve]'"
        ) from None
    del fastapi, httptools, prometheus_client, uvicorn
