"""A client of served runs, with the standard library alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

from tgflow.base.secret import check_url

Id = int | str
"""An id as in the stream."""
Features = Mapping[str, Any]
"""Features of an event, by the stream's columns."""
Time = float | str
"""In the unit of the stream's times, or ISO 8601."""


class AnswerError(RuntimeError):
    """Raised for a question that the server refuses; `status` is the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


class Client(AbstractContextManager["Client"]):
    """Asks a run that is served by `tgflow run --serve` or `tgflow serve`; a context manager.

    Answers are those of `/docs`: each has `position`, the number of events in it, and `parameters`,
    the number of those that its parameters have learned. Ids that no event has are scored as at
    their first events. Thread-safe; each thread has its own connection.

    Args:
        url: Address, such as "http://127.0.0.1:8080".
        token: Token to show; None: none.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 10.0) -> None:
        check_url(url)
        at = urlsplit(url)
        if at.scheme not in ("http", "https") or at.hostname is None:
            raise ValueError(f"{url!r} is no address: give one such as http://127.0.0.1:8080")
        self._kind = HTTPConnection if at.scheme == "http" else HTTPSConnection
        self._at, self._path, self._timeout = at.netloc, at.path.rstrip("/"), timeout
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._own = threading.local()

    def score(
        self,
        src: Sequence[Id],
        dst: Sequence[Id],
        *,
        at: Time | Sequence[Time] | None = None,
        relation: Id | Sequence[Id] | None = None,
        x: Features | Sequence[Features] | Sequence[Sequence[float]] | None = None,
    ) -> dict[str, Any]:
        """Return `scores` of pairs; with features `x` of events, also those of their labels."""
        return self.ask("/score", src=src, dst=dst, at=at, relation=relation, x=x)

    def top_k(
        self,
        src: Sequence[Id],
        k: int = 10,
        *,
        candidates: Sequence[Id] | None = None,
        exclude_known: bool = False,
        at: Time | Sequence[Time] | None = None,
        relation: Id | Sequence[Id] | None = None,
    ) -> dict[str, Any]:
        """Return `scores` of the likeliest destinations of each source, best first."""
        question = {"src": src, "k": k, "candidates": candidates, "exclude_known": exclude_known}
        return self.ask("/top-k", **question, at=at, relation=relation)

    def embedding(
        self, ids: Sequence[Id], *, at: Time | Sequence[Time] | None = None, side: str = "src"
    ) -> dict[str, Any]:
        """Return `embeddings` of nodes."""
        return self.ask("/embedding", ids=ids, at=at, side=side)

    def neighbors(
        self,
        ids: Sequence[Id],
        k: int = 10,
        *,
        at: Time | Sequence[Time] | None = None,
        side: str = "src",
    ) -> dict[str, Any]:
        """Return `neighbors`, the latest `k` events of each node, newest first."""
        return self.ask("/neighbors", ids=ids, k=k, at=at, side=side)

    def explain(
        self,
        src: Id,
        dst: Id,
        *,
        at: Time | None = None,
        relation: Id | None = None,
        x: Features | None = None,
        of: str | None = None,
        label: Id | None = None,
    ) -> dict[str, Any]:
        """Return why a pair has its score, or the label `of` a column its probability."""
        question = {"x": x, "of": of, "label": label}
        return self.ask("/explain", src=src, dst=dst, at=at, relation=relation, **question)

    def alerts(self, since: Time | None = None, limit: int = 100) -> dict[str, Any]:
        """Return the latest `alerts` of a run from a time on, newest first, at most `limit`."""
        query = {"limit": limit, **({} if since is None else {"since": since})}
        return self._request("GET", f"/alerts?{urlencode(query)}", None)

    def add_labels(self, labels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add labels that came after their events, with the `token` of `--label-token`.

        Adding one again changes nothing, so that a request may be repeated.

        Args:
            labels: Of each the event (`event_id`, or `src`, `dst` and `t`), `label`, and optionally
                its `time`; without it the time is that of the latest event.

        Returns:
            The numbers `added`, `corrected`, `repeated` and `waiting`, once they are on disk; and
            `refused`: row, code and reason of each bad one.
        """
        return self.ask("/labels", labels=labels)

    def health(self) -> dict[str, Any]:
        """Return the version of the answers, and how far behind the run they are."""
        return self._request("GET", "/healthz", None)

    def ask(self, path: str, **question: Any) -> dict[str, Any]:
        """Return the answer to a question; fields that are None are left out.

        Raises:
            AnswerError: If the server refuses it.
            OSError: If the server cannot be reached.
        """
        given = {name: value for name, value in question.items() if value is not None}
        return self._request("POST", path, json.dumps(given).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        before: HTTPConnection | None = getattr(self._own, "connection", None)
        connection = before or self._kind(self._at, timeout=self._timeout)
        self._own.connection = connection
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (HTTPException, OSError) as error:
            self.close()
            if before is None or isinstance(error, TimeoutError):
                raise ConnectionError(f"{self._at} cannot be asked: {error!r}") from error
            return self._request(method, path, body)  # the server had closed an old connection
        if response.status != 200:
            raise AnswerError(response.status, str(answer.get("detail", answer)))
        return answer

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            del self._own.connection

    def __exit__(self, *error: object) -> None:
        self.close()
