"""Who the other ranks are, to name the one that is gone."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Condition = Literal["alive", "stopped", "gone", "out of sight"]


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a world."""

    rank: int
    host: str
    machine: str
    pid: int

    @classmethod
    def here(cls, rank: int) -> Self:
        """Return this process as a member."""
        return cls(rank, socket.gethostname(), this_machine(), os.getpid())

    def condition(self) -> Condition:
        """Return what its process does, as far as this one can see it."""
        if self.machine != this_machine():
            return "out of sight"
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return "gone"
        state = stat.rpartition(")")[2].split()[0]
        return {"Z": "gone", "X": "gone", "T": "stopped", "t": "stopped"}.get(state, "alive")  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


def this_machine() -> str:
    """Return what tells this kernel and its process namespace from others; "" if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def find_lost(members: list[Member], patience: float = 0.5) -> str:
    """Return which of `members` ended or is stopped, as a sentence."""
    deadline = time.monotonic() + patience
    while time.monotonic() <= deadline:
        states = [(each, each.condition()) for each in members]
        found = [f"{each} is {state}" for each, state in states if state in ("gone", "stopped")]
        if found:
            return " and ".join(found)
        time.sleep(0.01)
    return (
        "no rank that can be seen from here has ended; if one is only slow, wait longer: "
        "join(timeout=), --rank-timeout"
    )
