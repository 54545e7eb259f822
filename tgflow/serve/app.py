"""The paths of a server, the page that documents them, and the process that serves them."""

from __future__ import annotations

import asyncio
import importlib.resources
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tgflow.serve.answers import Answers
from tgflow.serve.guard import STATIC, Guard, Limits, ServeFigures
from tgflow.serve.questions import (
    FAULT,
    QUESTIONS,
    Health,
    Question,
    Refusal,
    Refused,
)
from tgflow.text import printable

_READS = 20
"""Most attempts to read metrics while files are made or removed."""
GRACE_SECONDS = 5
"""Seconds for requests in progress when the server is closed."""
_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "Missing or wrong token"},
    404: {"model": Refusal, "description": "Unknown relation"},
    408: {"model": Refusal, "description": "The body did not arrive in time"},
    413: {"model": Refusal, "description": "The body is too large"},
    422: {"model": Refusal, "description": "Invalid question"},
    429: {"model": Refusal, "description": "Too many requests are waiting"},
    503: {"model": Refusal, "description": "The answer took too long"},
}


class Serving(NamedTuple):
    """What a server serves, and its limits."""

    name: str
    """Name of the run."""
    token: str | None
    """Token that clients must send; None: none."""
    limits: Limits
    max_lag: int | None
    """Most events behind the run while ready; None: any number."""


def make_app(serving: Serving, health: Callable[[], Health], registry: Any) -> FastAPI:
    """Return the application of all paths; `Guard` answers the questions that it declares."""
    app: FastAPI = FastAPIOffline(  # its page needs no other server
        title=f"tgflow: {serving.name}",
        version=version("tgflow-learn"),
        description="Scores, rankings and embeddings of a run, by the ids and times of its stream.",
        redoc_url=None,
        static_url=STATIC,
    )
    page = importlib.resources.files("tgflow.serve").joinpath("page.html").read_bytes()

    def declared(kind: type[Question]) -> Callable[..., None]:
        def question(question: Question) -> None: ...

        question.__annotations__["question"] = kind
        return question

    async def healthz() -> Health:
        return health()

    async def ready(response: Response) -> Health:
        found = health()
        if serving.max_lag is not None and found.behind > serving.max_lag:
            response.status_code = 503
        return found

    async def metrics() -> Response:
        return Response(await exported(registry), media_type=CONTENT_TYPE_LATEST)

    async def home() -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    for kind, (model, summary) in QUESTIONS.items():
        app.add_api_route(
            kind.path,
            declared(kind),
            methods=["POST"],
            response_model=model,
            responses=_REFUSALS,
            summary=summary,
        )
    app.add_api_route("/", home, include_in_schema=False)
    app.add_api_route("/healthz", healthz, summary="Version of the answers, distance from the run")
    app.add_api_route("/ready", ready, summary="The same; 503 while too far behind the run")
    app.add_api_route("/metrics", metrics, summary="Metrics for Prometheus")
    for error in (HTTPException, Exception):
        app.add_exception_handler(error, _refuse)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        # not a dependency, which would be resolved anew for each request: see `Guard`
        schemes = {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
        schema = plain()
        schema["components"]["securitySchemes"] = schemes
        return schema | {"security": [{name: [] for name in schemes}]}

    app.openapi = openapi  # type: ignore[method-assign]
    return app


async def exported(registry: Any) -> bytes:
    """Return a registry's metrics as text; those of all replicas, if it reads their files.

    A replica that starts makes its files empty at first, and those of one that has ended are
    removed: they are read again then.
    """
    for _ in range(_READS):
        with suppress(FileNotFoundError, struct.error):
            return await asyncio.to_thread(generate_latest, registry)
        await asyncio.sleep(0.02)
    return await asyncio.to_thread(generate_latest, registry)


def make_server(
    serving: Serving,
    answers: Answers,
    health: Callable[[], Health],
    own: Any,
    shown: Any,
    warn: Callable[[str], None],
) -> uvicorn.Server:
    """Return a server; `run([listener])` lasts until SIGTERM or SIGINT, or `should_exit`.

    Args:
        serving: What is served.
        answers: Answers the questions.
        health: Returns the state.
        own: Registry of prometheus-client that gets the metrics of requests.
        shown: Registry that is exported.
        warn: Called with a message for each fault.
    """
    app = make_app(serving, health, shown)
    guarded = Guard(app, answers, serving.limits, serving.token, ServeFigures(own), warn)
    settings = uvicorn.Config(
        guarded,
        http=partial(_Patience, serving.limits.timeout),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(settings)


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


def _refuse(request: Request, error: Exception) -> Response:
    """Return the error response; a fault of the server is passed to the guard, which logs it."""
    refused = Refused(500, FAULT)
    if isinstance(error, HTTPException):
        what = f"{request.method} {printable(request.url.path, 60)}"
        text = f"{what}: {error.detail}; /docs shows what can be asked"
        refused = Refused(error.status_code, text)
    return Response(refused.body, refused.status, media_type="application/json")
