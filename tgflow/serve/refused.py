"""Why a request gets no answer: a status of HTTP, and a sentence."""

from __future__ import annotations

import json

FAULT = "a fault in tgflow; the server's log says more"


class Refused(Exception):
    """A request that gets no answer."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.status, self.detail, self.headers = status, detail, headers or {}

    def __str__(self) -> str:
        return self.detail

    @property
    def body(self) -> bytes:
        """The sentence as JSON."""
        return json.dumps({"detail": self.detail}).encode()
