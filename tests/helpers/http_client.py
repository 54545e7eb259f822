"""Server clients: valid requests, and raw bytes for invalid ones."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit


class Client:
    """A client with one persistent connection.

    Args:
        url: Of the server.
        token: To show; None: none.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 60) -> None:
        at = urlsplit(url)
        self.host, self.port = at.hostname, at.port
        self._connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def post(self, path: str, question: Any) -> tuple[int, Any]:
        """Return status and response of a POST request."""
        body = question if isinstance(question, bytes) else json.dumps(question).encode()
        return self.request("POST", path, body, {"Content-Type": "application/json"})

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and response of a GET request."""
        return self.request("GET", path)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> tuple[int, Any]:
        """Return status and response, parsed JSON or text."""
        self._connection.request(method, path, body, self._headers | (headers or {}))
        answer = self._connection.getresponse()
        self.headers = answer.headers
        text = answer.read().decode()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def raw(self, data: bytes = b"") -> socket.socket:
        """Return a connection after sending `data`."""
        connection = socket.create_connection((self.host, self.port), timeout=60)
        connection.sendall(data)
        return connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def read_all(connection: socket.socket) -> bytes:
    """Return the bytes received until the server closes the connection."""
    parts = []
    with connection:
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)
