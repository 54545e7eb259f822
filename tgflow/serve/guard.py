"""Answers questions over HTTP, within limits: token, body size, free slot and timeout."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError

from tgflow.serve.answers import Answers
from tgflow.serve.endpoint import Hosts
from tgflow.serve.questions import FAULT, QUESTIONS, Refused, sentence_of

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class ServeFigures:
    """Prometheus metrics of requests."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._requests = Counter(
            "tgflow_serve_requests",
            "Requests by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "tgflow_serve_seconds",
            "Time from the headers of a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.waiting = Gauge(
            "tgflow_serve_waiting",
            "Questions that wait for their answers.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        """Requests in progress, including those being read."""

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)


Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

ASKING = {question.path: question for question in QUESTIONS}
OPEN = ("/", "/healthz", "/ready", "/docs", "/openapi.json")
STATIC = "/static"
"""Paths that need no token, and of the files of /docs: they reveal nothing about the data."""
KNOWN = (*ASKING, *OPEN, "/metrics")


class Limits(NamedTuple):
    """Limits of a request."""

    max_body: int
    """Most bytes of its body."""
    max_waiting: int
    """Most requests that wait for an answer, including it."""
    timeout: float
    """Timeout in seconds for its body, and for its answer."""


class Guard:
    """An ASGI application that answers questions, and passes other requests on to another one.

    The other one declares questions, but would take as long for each as the model does.
    """

    def __init__(
        self,
        app: App,
        answers: Answers,
        limits: Limits,
        token: str | None,
        hosts: Hosts,
        figures: ServeFigures,
        warn: Callable[[str], None],
    ) -> None:
        self._app, self._answers, self._figures, self._warn = app, answers, figures, warn
        self._hosts = hosts
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._max_body, self._max_waiting, self._timeout = limits
        self._num_asking = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a question, pass another request on, or reject it."""
        began, sent = time.perf_counter(), _Sent(send)
        path = scope["path"]
        try:
            await self._pass(scope, receive, sent)
        except Refused as refused:
            await sent.refuse(refused)
        except _Gone:
            return
        except Exception as error:
            self._warn(f"{path} failed: {type(error).__name__}: {error}")
            await sent.refuse(Refused(500, FAULT))
        finally:
            known = path if path in KNOWN else "other"
            self._figures.count(known, sent.status, time.perf_counter() - began)

    async def _pass(self, scope: Message, receive: Receive, send: _Sent) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        hosts, origins = (
            [value.decode("latin-1") for name, value in scope["headers"] if name == header]
            for header in (b"host", b"origin")
        )
        if why := self._hosts.refusal(hosts, origins):
            raise Refused(403, why)
        if scope["path"] not in OPEN and not scope["path"].startswith(f"{STATIC}/"):
            self._check_token(headers.get(b"authorization", b""))
        kind = ASKING.get(scope["path"])
        if kind is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._num_asking >= self._max_waiting:
            text = f"{self._num_asking} requests are waiting already; ask again in a second"
            raise Refused(429, text, {"Retry-After": "1"})
        self._num_asking += 1
        self._figures.waiting.set(self._num_asking)
        body: bytes | None = None
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._body(receive, headers.get(b"content-length", b"0"))
                question = kind.model_validate_json(body)
                answer = await asyncio.wrap_future(self._answers.ask(question))
                await send.respond(200, answer)
        except ValidationError as error:
            raise Refused(422, sentence_of(error.errors(include_url=False))) from None
        except TimeoutError:
            seconds = f"{self._timeout:g} s"
            if body is None:
                raise Refused(408, f"the body did not arrive within {seconds}") from None
            raise Refused(503, f"no answer within {seconds}; ask again, or for less") from None
        finally:
            self._num_asking -= 1
            self._figures.waiting.set(self._num_asking)

    def _check_token(self, shown: bytes) -> None:
        if self._expected is not None and not secrets.compare_digest(shown, self._expected):
            text = "this address needs a token; send the header Authorization: Bearer TOKEN"
            raise Refused(401, text, {"WWW-Authenticate": "Bearer"})

    async def _body(self, receive: Receive, length: bytes) -> bytes:
        """Return the body, up to the size limit."""
        size, body, more = int(length), bytearray(), True
        while more and size <= self._max_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            size = max(size, len(body))
        if size > self._max_body:
            raise Refused(
                413, f"the body has more than {self._max_body:,} bytes; ask about less at a time"
            )
        return bytes(body)


class _Gone(Exception):
    """Raised if the client disconnects before the request is complete."""


class _Sent:
    """Sends an application's response, and records its status and progress."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """Status of the response; 0 before there is one."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def refuse(self, why: Refused) -> None:
        """Send a rejection; if part of a response was already sent, close the connection."""
        if not self.status:
            await self.respond(why.status, why.body, why.headers)

    async def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Send a response of JSON."""
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        named = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
        await self({"type": "http.response.start", "status": status, "headers": named})
        await self({"type": "http.response.body", "body": body})
