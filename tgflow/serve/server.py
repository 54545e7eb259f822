"""A predictor over HTTP, which a process of its own speaks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from tgflow.config.schema import ServeConfig
from tgflow.serve.answers import Answers
from tgflow.serve.backend import Backend
from tgflow.serve.endpoint import Endpoint
from tgflow.serve.gateway_process import GatewayProcess
from tgflow.serve.guard import Limits
from tgflow.serve.link import Begin
from tgflow.serve.predictor import Predictor
from tgflow.units import parse_bytes, parse_seconds

_GRACE_SECONDS = 10
"""For a gateway to answer what it was asked, and to end, when the server is closed."""
_RESTART_SECONDS = 1.0
"""From the end of a gateway to the beginning of the next one."""


class Server:
    """Serves a predictor from when it is made until it is closed; a context manager.

    A process of its own reads requests and writes answers, see `Gateway`; one thread here takes
    from it what is asked, and another one answers, see `Answers`. A gateway that was killed is
    started again; what it had been asked is lost, and so are its counts of requests.

    Args:
        predictor: What answers.
        endpoint: Where to listen.
        token: What clients must have; None: nothing.
        config: The limits.
        name: What is served.
        registry: Of prometheus-client: gets the server's position, and is shown with what the
            gateway has counted.
        state: Returns how the run is.
        warn: Hears of faults, from threads of the server.

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
        from prometheus_client import Gauge

        seconds = parse_seconds(config.timeout)
        limits = Limits(parse_bytes(config.max_body), config.max_waiting, seconds)
        self._begin, self._warn = Begin(name, token, limits), _surely(warn)
        self._listener = endpoint.listen()
        self.endpoint = Endpoint(endpoint.host, self._listener.getsockname()[1])
        """Where it listens."""
        position = Gauge("tgflow_serve_position", "Events that answers know of.", registry=registry)
        position.set_function(lambda: predictor.position)
        self._gateway = GatewayProcess(self._listener, self._begin)
        self._answers = Answers(predictor, config.max_pairs)
        self._backend = Backend(predictor, self._answers, registry, state, self._warn)
        self._ends, self._starting = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="serve", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Take no more requests, and answer those that there are, as far as that takes seconds."""
        with self._starting:
            self._ends.set()
            self._listener.close()
            killing = threading.Timer(_GRACE_SECONDS, self._gateway.kill)
            killing.start()  # before anything is sent, which waits for one that stands still
            self._gateway.end()
        self._thread.join()
        killing.cancel()
        self._answers.close()
        self._backend.close()

    def _serve(self) -> None:
        """Attend to a gateway, and to the next one where it ends by itself."""
        try:
            while self._attend():
                self._start_again()
        except Exception as error:
            self._warn(f"nobody answers over HTTP anymore: {type(error).__name__}: {error}")
        finally:  # who asks now is refused, and does not wait for ever
            self._listener.close()
            self._gateway.kill()

    def _attend(self) -> bool:
        """Answer the gateway until it ends, and return whether there is to be another one."""
        was_ready = self._backend.attend(self._gateway.link)
        code = self._gateway.wait()
        if self._ends.is_set():
            return False
        is_killed = code < 0
        how = f"signal {-code}" if is_killed else f"exit status {code}"
        goes_on = was_ready or is_killed
        what = "it is started again" if goes_on else "nobody answers anymore"
        self._warn(f"the process that speaks HTTP has ended with {how}: {what}")
        return goes_on

    def _start_again(self) -> None:
        """Start a gateway, as soon as that is possible."""
        while not self._ends.wait(_RESTART_SECONDS):
            with self._starting, suppress(OSError):
                if not self._ends.is_set():
                    self._gateway = GatewayProcess(self._listener, self._begin)
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _surely(warn: Callable[[str], None]) -> Callable[[str], None]:
    """Return what warns where that is possible: nobody is left without an answer for it."""

    def say(text: str) -> None:
        with suppress(Exception, SystemExit):  # which rich raises where a terminal is gone
            warn(text)

    return say


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
