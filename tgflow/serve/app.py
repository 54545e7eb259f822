"""The application of a server: answers to questions, state, metrics, and pages that document it."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import secrets
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from jinja2 import Environment
from markupsafe import Markup
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest
from pydantic import ValidationError

from tgflow.base.page_style import page_style
from tgflow.base.text import printable
from tgflow.serve.answers import Answers
from tgflow.serve.endpoint import Hosts, Serving
from tgflow.serve.questions import FAULT, QUESTIONS, Health, Refused, sentence_of

_READS = 20
"""Most attempts to read metrics while files are made or removed."""
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

ASKING = {question.path: question for question in QUESTIONS}
READING = ("/healthz", "/ready", "/metrics")
PAGES = ("/", "/docs", "/openapi.json")
LABELS = "/labels"
"""Path of labels to add, with a token of its own."""
OPEN = (*PAGES, "/healthz", "/ready")
"""Paths that need no token: they reveal nothing about the data."""
_JSON, _HTML = "application/json", "text/html; charset=utf-8"


class ServeFigures:
    """Prometheus metrics of requests."""

    def __init__(self, registry: Any) -> None:
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


class App:
    """An ASGI application that answers questions and serves pages, within limits.

    `add_labels` adds the labels in a body to the run, and returns status and answer; None: the run
    does not learn. `warn` is called with a message for each fault.
    """

    def __init__(
        self,
        serving: Serving,
        answers: Answers,
        health: Callable[[], Health],
        figures: ServeFigures,
        registry: Any,
        warn: Callable[[str], None],
        add_labels: Callable[[bytes], tuple[int, bytes]] | None = None,
    ) -> None:
        self._add_labels = add_labels
        self._serving, self._answers, self._health = serving, answers, health
        self._figures, self._registry, self._warn = figures, registry, warn
        token = serving.token
        self._expected, self._of_labels = (
            None if each is None else f"Bearer {each}".encode()
            for each in (token, serving.label_token)
        )
        self._hosts = Hosts(serving.endpoint, serving.hosts)
        self._num_asking = 0
        folder = importlib.resources.files("tgflow.serve")
        page, docs, text = (
            folder.joinpath(name).read_text("utf-8")
            for name in ("page.html", "docs.html", "openapi.json")
        )
        api = json.loads(text)
        api["info"] |= {"title": f"tgflow: {serving.name}", "version": version("tgflow-learn")}
        about = {"api": api, "url": serving.endpoint.url, "has_token": token is not None}
        about |= {"css": Markup(page_style()), "name": serving.name, "run": serving.run}
        pages = Environment(autoescape=True, trim_blocks=True)
        page, docs = (pages.from_string(text).render(about) for text in (page, docs))
        self._pages = {
            "/": (page.encode(), _HTML),
            "/docs": (docs.encode(), _HTML),
            "/openapi.json": (json.dumps(api).encode(), _JSON),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or reject it."""
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
            known = path if path in (*ASKING, LABELS, *READING, *PAGES) else "other"
            self._figures.count(known, sent.status, time.perf_counter() - began)

    async def _pass(self, scope: Message, receive: Receive, send: _Sent) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        hosts, origins = (
            [value.decode("latin-1") for name, value in scope["headers"] if name == header]
            for header in (b"host", b"origin")
        )
        if why := self._hosts.refusal(hosts, origins):
            raise Refused(403, why)
        path, method = scope["path"], scope["method"]
        if path == LABELS:
            self._check_adding(headers.get(b"authorization", b""))
        elif path not in OPEN:
            self._check_token(headers.get(b"authorization", b""), self._expected)
        what = f"{method} {printable(path, 60)}"
        if path not in (*ASKING, LABELS, *READING, *PAGES):
            raise Refused(404, f"{what}: Not Found; /docs shows what can be asked")
        kind = ASKING.get(path)
        is_read = path in READING or path in PAGES
        is_asked = is_read or (kind is not None and kind.method == "GET")
        allowed = ("GET", "HEAD") if is_asked else ("POST",)
        if method not in allowed:
            text = f"{what}: Method Not Allowed; /docs shows what can be asked"
            raise Refused(405, text, {"Allow": ", ".join(allowed)})
        if is_read:
            await self._show(path, send)
            return
        if self._num_asking >= self._serving.max_waiting:
            text = f"{self._num_asking} requests are waiting already; ask again in a second"
            raise Refused(429, text, {"Retry-After": "1"})
        self._num_asking += 1
        self._figures.waiting.set(self._num_asking)
        body: bytes | None = None
        try:
            async with asyncio.timeout(self._serving.timeout):
                body = await self._body(receive, headers.get(b"content-length", b"0"))
                query = scope["query_string"].decode("latin-1")
                await send.respond(*await self._answered(path, query, body))
        except ValidationError as error:
            raise Refused(422, sentence_of(error.errors(include_url=False))) from None
        except TimeoutError:
            seconds = f"{self._serving.timeout:g} s"
            if body is None:
                raise Refused(408, f"the body did not arrive within {seconds}") from None
            raise Refused(503, f"no answer within {seconds}; ask again, or for less") from None
        finally:
            self._num_asking -= 1
            self._figures.waiting.set(self._num_asking)

    async def _answered(self, path: str, query: str, body: bytes) -> tuple[int, bytes]:
        if path == LABELS:
            assert self._add_labels is not None
            return await asyncio.to_thread(self._add_labels, body)
        kind = ASKING[path]
        if kind.method == "GET":
            question = kind.model_validate(dict(parse_qsl(query)))
        else:
            question = kind.model_validate_json(body)
        return 200, await asyncio.wrap_future(self._answers.ask(question))

    def _check_adding(self, shown: bytes) -> None:
        if self._add_labels is None or self._of_labels is None:
            raise Refused(
                403,
                "this server is read-only; labels are added to a run that learns, served by tgflow "
                "run --serve PORT --label-token env:NAME",
            )
        self._check_token(shown, self._of_labels)

    async def _show(self, path: str, send: _Sent) -> None:
        """Send a page, the state or the metrics."""
        if path in self._pages:
            page, kind = self._pages[path]
            await send.respond(200, page, {"Content-Type": kind})
        elif path == "/metrics":
            text = await exported(self._registry)
            await send.respond(200, text, {"Content-Type": CONTENT_TYPE_LATEST})
        else:
            found, most = self._health(), self._serving.max_lag
            is_late = path == "/ready" and most is not None and found.behind > most
            await send.respond(503 if is_late else 200, json.dumps(found._asdict()).encode())

    def _check_token(self, shown: bytes, expected: bytes | None) -> None:
        if expected is not None and not secrets.compare_digest(shown, expected):
            text = "this address needs a token; send the header Authorization: Bearer TOKEN"
            raise Refused(401, text, {"WWW-Authenticate": "Bearer"})

    async def _body(self, receive: Receive, length: bytes) -> bytes:
        """Return the body, up to the size limit."""
        size, most, body, more = int(length), self._serving.max_body, bytearray(), True
        while more and size <= most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            size = max(size, len(body))
        if size > most:
            raise Refused(413, f"the body has more than {most:,} bytes; ask about less at a time")
        return bytes(body)


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


class _Gone(Exception):
    """Raised if the client disconnects before the request is complete."""


class _Sent:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """Status of the response; 0 before there is one."""

    async def refuse(self, why: Refused) -> None:
        """Send a rejection; if part of a response was already sent, close the connection."""
        if not self.status:
            await self.respond(why.status, why.body, why.headers)

    async def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Send a response, of JSON unless the headers have another type."""
        self.status = status
        headers = {"Content-Type": _JSON, "Content-Length": str(len(body)), **headers}
        named = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": named})
        await self._send({"type": "http.response.body", "body": body})
