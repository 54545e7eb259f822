"""How this process was started as a rank, and the network interfaces of this host."""

from __future__ import annotations

import fcntl
import platform
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tgflow.peers import Shard, WorldError

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
MEETING_VARIABLE = "TGFLOW_MEETING"
"""Rendezvous directory of the ranks that `supervise` started on one host."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch parameters of a rank, from the environment variables of torchrun or `supervise`."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: tuple[str, int] | None = None
    has_agent: bool = False
    meeting: str | None = None

    @property
    def one_host(self) -> bool:
        """Whether all ranks are on this host."""
        return self.local_world == self.world


def read_launch(environ: Mapping[str, str]) -> Launch | None:
    """Return the launch parameters of this process; None if it is the only one.

    Raises:
        WorldError: If variables are missing or invalid, or this is not Linux.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    Shard(rank, world)
    if world == 1:
        return None
    require_linux()
    meeting = environ.get(MEETING_VARIABLE)
    address = None
    if meeting is None:
        if "MASTER_ADDR" not in environ:
            raise WorldError("WORLD_SIZE is set but MASTER_ADDR is not; start ranks with torchrun")
        address = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
    local_world = _number(environ, "LOCAL_WORLD_SIZE", world)
    return Launch(
        rank=rank,
        world=world,
        local_rank=_number(environ, "LOCAL_RANK", rank % max(1, local_world)),
        local_world=local_world,
        address=address,
        has_agent=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        meeting=meeting,
    )


def require_linux() -> None:
    """Raise WorldError unless this is Linux, whose processes and interfaces ranks look up."""
    if sys.platform != "linux":
        raise WorldError(
            f"several ranks need Linux, and this is {platform.system()}; run one process, without "
            "--nproc and torchrun"
        )


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise WorldError(
            f"{name} must be a whole number, got {text!r}; start ranks with torchrun"
        ) from None


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
