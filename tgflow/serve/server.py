"""Serves a predictor over HTTP, with a separate HTTP process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any, Self

from tgflow.config.schema import ServeConfig
from tgflow.extras import install_command
from tgflow.serve.answers import Answers
from tgflow.serve.endpoint import Endpoint
from tgflow.serve.guard import Limits
from tgflow.serve.link import Begin, Call, Cancel, End, Link, Ready, Reply, Warned
from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import FAULT, Question, Refused
from tgflow.units import parse_bytes, parse_seconds

_GRACE_SECONDS = 10
"""Seconds for a gateway to send its pending answers and end when the server is closed."""
_RESTART_SECONDS = 1.0
"""Seconds between the end of a gateway and the start of the next one."""


class Server:
    """Serves a predictor from construction until it is closed; a context manager.

    A separate process reads requests and writes answers, see `Gateway`; one thread here receives
    the questions, and another one answers, see `Answers`. A killed gateway is restarted; its
    pending requests and its request counts are lost.

    Args:
        predictor: Predictor that answers.
        endpoint: Address to listen on.
        token: Token that clients must send; None: none.
        config: Limits.
        name: Name of the served run.
        registry: Of prometheus-client: gets the server's position, and is exported with the
            gateway's counters.
        state: Returns the state of the run.
        warn: Called with a message for each fault, from threads of the server.

    Raises:
        ModuleNotFoundError: If FastAPI, uvicorn, httptools or prometheus-client is not installed.
        OSError: If the address is in use.
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
        self._begin = Begin(name, token, limits)
        self._predictor, self._registry, self._state, self._log = predictor, registry, state, warn
        self._listener = endpoint.listen()
        self.endpoint = Endpoint(endpoint.host, self._listener.getsockname()[1])
        """Address that it listens on."""
        position = Gauge("tgflow_serve_position", "Events included in answers.", registry=registry)
        position.set_function(lambda: predictor.position)
        self._start_gateway()
        self._answers = Answers(predictor, config.max_pairs)
        # collecting metrics may block on a disk, which must not delay questions
        self._measuring = ThreadPoolExecutor(1, "metrics")
        self._ends, self._starting = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="serve", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop accepting requests, and answer those in progress, within a time limit."""
        with self._starting:
            self._ends.set()
            self._listener.close()
            killing = threading.Timer(_GRACE_SECONDS, self._process.kill)
            killing.start()  # before sending, which blocks if the gateway hangs
            self._link.send(End())
        self._thread.join()
        killing.cancel()
        self._answers.close()
        self._measuring.shutdown(wait=False, cancel_futures=True)

    def _start_gateway(self) -> None:
        """Start a process that accepts requests, see `Gateway`."""
        ours, theirs = Pipe()
        with theirs:
            inherited = self._listener.fileno(), theirs.fileno()
            # -P: do not import modules from the working directory
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tgflow.serve.gateway", *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the process that has the model
            )
        self._link = Link(ours)
        self._link.send(self._begin)

    def _serve(self) -> None:
        """Answer a gateway, and the next one if it ends by itself."""
        try:
            while self._answer_gateway():
                while not self._ends.wait(_RESTART_SECONDS):
                    with self._starting, suppress(OSError):
                        if not self._ends.is_set():
                            self._start_gateway()
                            break
        except Exception as error:
            self._warn(f"the HTTP server has stopped: {type(error).__name__}: {error}")
        finally:  # new requests are rejected instead of waiting forever
            self._listener.close()
            self._process.kill()

    def _answer_gateway(self) -> bool:
        """Answer the gateway until it ends, and return whether to start another one."""
        link, was_ready = self._link, False
        asked: dict[int, Future[bytes]] = {}
        while True:
            try:
                message = link.receive()
            except EOFError:
                break
            if isinstance(message, Ready):
                was_ready = True
            elif isinstance(message, Warned):
                self._warn(message.text)
            elif isinstance(message, Cancel):
                if found := asked.get(message.number):
                    found.cancel()
            else:
                self._answer(link, asked, message)
        for future in [*asked.values()]:
            future.cancel()
        code = self._process.wait()
        link.close()
        if self._ends.is_set():
            return False
        is_killed = code < 0
        how = f"signal {-code}" if is_killed else f"exit status {code}"
        goes_on = was_ready or is_killed
        what = "restarting it" if goes_on else "the server has stopped"
        self._warn(f"the HTTP process has ended with {how}: {what}")
        return goes_on

    def _answer(self, link: Link, asked: dict[int, Future[bytes]], message: Call) -> None:
        """Send an answer, at once or when it is ready; until then it is in `asked`."""
        from prometheus_client import generate_latest

        number, what = message
        path = what.path if isinstance(what, Question) else what

        def send(future: Future[bytes]) -> None:
            del asked[number]
            with suppress(CancelledError):
                error = future.exception()
                if error is None or isinstance(error, Refused):
                    link.send(Reply(number, future.result() if error is None else error))
                    return
                link.send(Reply(number, Refused(500, FAULT)))
                self._warn(f"{path} failed: {type(error).__name__}: {error}")

        if isinstance(what, Question):
            future = self._answers.ask(what)
        elif path == "/metrics":
            future = self._measuring.submit(generate_latest, self._registry)
        else:
            future = Future[bytes]()
            try:
                health = {"state": self._state(), "position": self._predictor.position}
                future.set_result(json.dumps(health).encode())
            except Exception as error:
                future.set_exception(error)
        asked[number] = future
        future.add_done_callback(send)

    def _warn(self, text: str) -> None:
        with suppress(Exception, SystemExit):  # raised by rich if the terminal is gone
            self._log(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_installed() -> None:
    """Raise ModuleNotFoundError, with the fix, unless the server dependencies are installed."""
    try:
        import fastapi
        import httptools
        import prometheus_client
        import uvicorn
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"serving needs {error.name}; {install_command('serve')}"
        ) from None
    del fastapi, httptools, prometheus_client, uvicorn
