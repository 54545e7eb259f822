"""The paths of a server, the page that documents them, and the process that serves them."""

from __future__ import annotations

import asyncio
import importlib.resources
import struct
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from tgflow.serve.endpoint import Hosts
from tgflow.serve.guard import STATIC, Limits
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
_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "Missing or wrong token"},
    403: {"model": Refusal, "description": "Host or Origin of another server"},
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
    hosts: Hosts
    """Hosts that it answers for."""
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


def _refuse(request: Request, error: Exception) -> Response:
    """Return the error response; a fault of the server is passed to the guard, which logs it."""
    refused = Refused(500, FAULT)
    if isinstance(error, HTTPException):
        what = f"{request.method} {printable(request.url.path, 60)}"
        text = f"{what}: {error.detail}; /docs shows what can be asked"
        refused = Refused(error.status_code, text)
    return Response(refused.body, refused.status, media_type="application/json")
