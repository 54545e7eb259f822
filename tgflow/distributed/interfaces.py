"""The network interfaces of this host, and the address that ranks listen on."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping

from tgflow.peers import WorldError

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, by its name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def choose_interface(wanted: str | None, *, one_host: bool) -> tuple[str, str]:
    """Return the name and address of the interface to listen on."""
    found = interfaces()
    if wanted is not None and wanted in found:
        return wanted, found[wanted]
    if wanted is not None:
        is_there = wanted in [name for _, name in socket.if_nameindex()]
        what = "has no IPv4 address" if is_there else "is none of this host's"
        raise WorldError(f"interface {wanted!r} {what}; there are {_listed(found)}")
    if not one_host:
        raise WorldError(
            "the ranks are on several hosts: name the interface by which they reach this one, "
            f"interface='eth1'; there are {_listed(found)}"
        )
    local = [name for name, address in found.items() if address == LOOPBACK]
    if not local:
        raise WorldError(f"no interface has {LOOPBACK}; name one of {_listed(found)}")
    return local[0], LOOPBACK


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({address})" for name, address in found.items()) or "none"
