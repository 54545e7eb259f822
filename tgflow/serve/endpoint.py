"""The address of a server, and the token that it requires."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import NamedTuple

TOKEN_VARIABLE = "TGFLOW_SERVE_TOKEN"
LEAST_TOKEN = 16
"""Least characters of a token: shorter ones can be guessed."""
_BACKLOG = 512


class Endpoint(NamedTuple):
    """An address to listen on.

    Example:
        >>> Endpoint.parse("8080")
        Endpoint(host='127.0.0.1', port=8080)
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of `PORT` or `HOST:PORT`; an IPv6 host is in brackets.

        Raises:
            ValueError: If it is neither.
        """
        found = re.fullmatch(r"(?:(?P<host>\[[^\[\]]+\]|[^:\[\]]+):)?(?P<port>\d{1,5})", text)
        if found is None or int(found["port"]) > 65_535:
            raise ValueError(
                f"{text!r} is neither a port nor HOST:PORT; give one such as 8080, 0.0.0.0:8080 or "
                "[::1]:8080"
            )
        return cls((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))

    @property
    def is_own(self) -> bool:
        """Whether only processes of this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a host name, which may resolve to any address
            return False

    @property
    def url(self) -> str:
        """The address for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def listen(self) -> socket.socket:
        """Return a socket that listens on the address.

        Raises:
            OSError: If the address is in use, or does not belong to this machine.
        """
        try:
            found = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, *_, address = found[0]
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
            # connections inherit it; asyncio sets it only where a socket names its protocol
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"cannot listen on {self.url}: {why}; choose another: --serve") from None


def read_token(endpoint: Endpoint, file: str | None) -> str | None:
    """Return the bearer token that clients must send; None if none is required.

    Args:
        endpoint: Where the server listens.
        file: File with the token; None: the environment's `TGFLOW_SERVE_TOKEN`, if it is set.

    Raises:
        ValueError: If the endpoint can be reached from elsewhere and there is no token, or the
            token can be guessed or is not printable.
        OSError: If the file cannot be read.
    """
    token = os.environ.get(TOKEN_VARIABLE) if file is None else Path(file).read_text("utf-8")
    where = f"{TOKEN_VARIABLE} of the environment" if file is None else file
    token = None if token is None else token.strip()
    if token is None:
        if not endpoint.is_own:
            raise ValueError(
                f"{endpoint.host} can be reached from other machines, so clients must show a "
                f"token: name a file that has it with --serve-token-file, or set {TOKEN_VARIABLE}; "
                "or serve on 127.0.0.1"
            )
        return None
    if len(token) < LEAST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            f"the token in {where} must have at least {LEAST_TOKEN} characters, all of them "
            "visible ASCII, got "
            f"{len(token)} characters; make one with: openssl rand -hex 32"
        )
    return token
