"""The paths of a server, and the page that documents them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from tgflow.serve.link import What
from tgflow.serve.questions import (
    FAULT,
    EmbeddingAnswer,
    EmbeddingQuestion,
    ExplainAnswer,
    ExplainQuestion,
    Health,
    Question,
    Refusal,
    Refused,
    ScoreAnswer,
    ScoreQuestion,
    TopAnswer,
    TopQuestion,
    sentence_of,
)
from tgflow.text import printable

ENDED = ("failed", "stopped", "done")
_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "Missing or wrong token"},
    404: {"model": Refusal, "description": "Unknown id"},
    408: {"model": Refusal, "description": "The body did not arrive in time"},
    413: {"model": Refusal, "description": "The body is too large"},
    422: {"model": Refusal, "description": "Invalid question"},
    429: {"model": Refusal, "description": "Too many requests are waiting"},
    503: {"model": Refusal, "description": "The answer took too long"},
}


def make_app(ask: Callable[[What], Awaitable[bytes]], registry: Any, name: str) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title=f"tgflow: {name}",
        version=version("tgflow-learn"),
        description="Scores, rankings and embeddings of a run, by the ids and times of its stream.",
        redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))],
    )

    async def answered(question: Question) -> Response:
        return Response(await ask(question), media_type="application/json")

    async def score(question: ScoreQuestion) -> Response:
        return await answered(question)

    async def top(question: TopQuestion) -> Response:
        return await answered(question)

    async def embedding(question: EmbeddingQuestion) -> Response:
        return await answered(question)

    async def explain(question: ExplainQuestion) -> Response:
        return await answered(question)

    async def health() -> Response:
        found = await ask("/healthz")
        status = 503 if json.loads(found)["state"] in ENDED else 200
        return Response(found, status, media_type="application/json")

    async def metrics() -> Response:
        found = await ask("/metrics") + generate_latest(registry)
        return Response(found, media_type=CONTENT_TYPE_LATEST)

    for question, endpoint, model, summary in (
        (ScoreQuestion, score, ScoreAnswer, "Scores of pairs"),
        (TopQuestion, top, TopAnswer, "Likeliest destinations of sources"),
        (EmbeddingQuestion, embedding, EmbeddingAnswer, "Embeddings of nodes"),
        (ExplainQuestion, explain, ExplainAnswer, "Why a pair has its score"),
    ):
        app.add_api_route(
            question.path,
            endpoint,
            methods=["POST"],
            response_model=model,
            responses=_REFUSALS,
            summary=summary,
        )
    app.add_api_route("/healthz", health, response_model=Health, summary="State of the run")
    app.add_api_route("/metrics", metrics, summary="Metrics for Prometheus")
    for kind in (Refused, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)
    return app


def _refuse(request: Request, error: Exception) -> Response:
    """Return the error response; a fault of the server is passed to the guard, which logs it."""
    refused = _refusal_of(request, error)
    headers = refused.headers | {"Content-Type": "application/json"}
    return Response(refused.body, refused.status, headers)


def _refusal_of(request: Request, error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestValidationError):
        return Refused(422, sentence_of(error.errors()))
    if not isinstance(error, HTTPException):
        return Refused(500, FAULT)
    what = f"{request.method} {printable(request.url.path, 60)}"
    return Refused(error.status_code, f"{what}: {error.detail}; /docs shows what can be asked")
