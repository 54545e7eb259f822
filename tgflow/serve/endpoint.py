"""The address of a server, the hosts that it answers for, and the token that it requires."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tgflow.base.text import printable

TOKEN_VARIABLE = "TGFLOW_SERVE_TOKEN"
LEAST_TOKEN = 16
"""Least characters of a token: shorter ones can be guessed."""
_BACKLOG = 512
_HOST, _PORT = r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+)", r"(?P<port>\d{1,5})"


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
        """Return the endpoint of `PORT` or `HOST:PORT`; an IPv6 host is in brackets."""
        found = re.fullmatch(rf"(?:{_HOST}:)?{_PORT}", text)
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
        # a host name may resolve to any address
        return _is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback

    @property
    def url(self) -> str:
        """The address for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def listen(self) -> socket.socket:
        """Return a socket that listens on the address; OSError if it is in use, or not of this
        machine.
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


class Hosts:
    """Values of the headers Host and Origin that a server accepts: its address, and `listed` names.

    A web page can reach a local server by a DNS name of its own that it redirects to 127.0.0.1; its
    requests then have that name as Host. A server on all addresses accepts any IP address, for
    which no name was looked up. A listed name is HOST, HOST:PORT or, for any, "*".
    """

    def __init__(self, endpoint: Endpoint, listed: Sequence[str] = ()) -> None:
        host, self._any = _canonical(endpoint.host), "*" in listed
        self._is_wide = host in ("0.0.0.0", "::")
        self._named: set[tuple[str, int | None]] = {(host, endpoint.port)}
        if endpoint.is_own:
            self._named |= {(name, endpoint.port) for name in ("localhost", "127.0.0.1", "::1")}
        for name in listed:
            found = _authority(name)
            if found is None and name != "*":
                raise ValueError(f"{name!r} is neither HOST nor HOST:PORT: --serve-hosts")
            self._named |= {found} if found else set()

    def refusal(self, hosts: Sequence[str], origins: Sequence[str]) -> str | None:
        """Return why a request with these headers is refused; None if it is not."""
        if self._any:
            return None
        host = _authority(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._has(*host):
            return _other_host("Host", ", ".join(hosts))
        for origin in origins:
            at = _authority(origin.partition("://")[2])
            if at is None or (at != host and not self._lists(*at)):
                return _other_host("Origin", origin)
        return None

    def _has(self, host: str, port: int | None) -> bool:
        return self._lists(host, port) or (self._is_wide and (host == "localhost" or _is_ip(host)))

    def _lists(self, host: str, port: int | None) -> bool:
        return not self._named.isdisjoint(((host, port or 80), (host, None)))


def _authority(text: str) -> tuple[str, int | None] | None:
    """Return host and port of HOST or HOST:PORT; None if it is neither."""
    found = re.fullmatch(rf"{_HOST}(?::{_PORT})?", text)
    if found is None:
        return None
    port = found["port"]
    return _canonical(found["host"].strip("[]")), None if port is None else int(port)


def _canonical(host: str) -> str:
    return str(ipaddress.ip_address(host)) if _is_ip(host) else host.lower()


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _other_host(header: str, value: str) -> str:
    return (
        f"the header {header} has {printable(value, 80)!r}, which is not this server's address; if "
        "it is that of a proxy or probe, start the server with --serve-hosts NAME"
    )


class Serving(NamedTuple):
    """What a server serves, and its limits."""

    name: str
    run: str
    token: str | None
    """Token that clients must send; None: none."""
    endpoint: Endpoint
    hosts: Sequence[str]
    """Further hosts that it answers for, see `Hosts`."""
    max_body: int
    max_waiting: int
    timeout: float
    """Timeout in seconds for a request, and for its answer."""
    max_lag: int | None
    """Most events behind the run while ready; None: any number."""
    label_token: str | None = None
    """Token that clients must send to add labels; None: none can."""


def read_token(endpoint: Endpoint, file: str | None) -> str | None:
    """Return the bearer token in `file`, by default in `TGFLOW_SERVE_TOKEN`; None if none is
    required.

    Raises ValueError if the endpoint can be reached from elsewhere and there is no token, or as
    `check_token`.
    """
    token = os.environ.get(TOKEN_VARIABLE) if file is None else Path(file).read_text("utf-8")
    where = f"{TOKEN_VARIABLE} of the environment" if file is None else file
    if token is None:
        if not endpoint.is_own:
            raise ValueError(
                f"{endpoint.host} can be reached from other machines, so clients must show a "
                f"token: set {TOKEN_VARIABLE}, or name a file that has it by --set "
                "serve.token_file=FILE; or serve on 127.0.0.1"
            )
        return None
    return check_token(token, where)


def check_token(token: str, where: str) -> str:
    """Return a token without spaces around it; ValueError if it can be guessed."""
    token = token.strip()
    if len(token) < LEAST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            f"the token in {where} must have at least {LEAST_TOKEN} characters, all of them "
            "visible ASCII, got "
            f"{len(token)} characters; make one with: openssl rand -hex 32"
        )
    return token
