"""Sockets of this process."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def addresses_listened_on() -> list[str]:
    """The local addresses, in hexadecimal, that sockets of this process listen on."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:  # the one that lists them
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append(fields[1].split(":")[0])
    return found


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
