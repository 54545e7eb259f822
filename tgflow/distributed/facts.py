"""Facts that each rank reports when it joins, and checks that the ranks are compatible."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import torch

from tgflow._native import num_threads
from tgflow.distributed.launch import Launch

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
        """Return the state of its process, as far as it is visible from this one."""
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
    """Return an identifier of this kernel and its process namespace; "" if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


MOST_BYTES = 1 << 20
"""Largest size of one rank's facts; more is rejected unread."""

_LOOK_SECONDS = 0.5
_WAYS_OUT = {
    "CPU capability": "set ATEN_CPU_CAPABILITY to the same for all of them",
    "threads": "set threads=... to the same for all of them",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """A rank, and the settings and versions that must or should be equal on all ranks."""

    member: Member
    world: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    computing: Mapping[str, str]
    device: str | None

    @classmethod
    def here(cls, launch: Launch, settings: Mapping[str, Any], device: torch.device) -> Self:
        """Return the facts of this process."""
        return cls(
            member=Member.here(launch.rank),
            world=launch.world,
            settings=json.loads(json.dumps(dict(settings), default=str)),
            versions={
                "tgflow": version("tgflow-learn"),
                "torch": torch.__version__,
                "Python": platform.python_version(),
            },
            computing={
                "CPU capability": torch.backends.cpu.get_cpu_capability(),
                "threads": f"{torch.get_num_threads()} and {num_threads()}",
            },
            device=_device_name(device),
        )

    def to_bytes(self) -> bytes:
        """Return the facts as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the facts in `data`, from `to_bytes`."""
        if len(data) > MOST_BYTES:
            raise ValueError(
                f"{len(data)} bytes exceed the limit of {MOST_BYTES} for a rank's facts"
            )
        try:
            found = json.loads(data)
            return cls(**found | {"member": Member(**found["member"])})
        except (TypeError, LookupError) as error:
            raise ValueError(f"a rank sent invalid facts: {error!r}") from None


def _device_name(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"{this_machine()} {torch.cuda.get_device_properties(index).uuid}"


def find_disagreement(everyone: Sequence[Facts]) -> str | None:
    """Return the first required fact that differs, with the fix; None if all agree."""
    first = everyone[0]
    for other in everyone[1:]:
        who = f"rank {other.member.rank}"
        if found := _difference(other.versions, first.versions):
            key, theirs, ours = found
            return (
                f"{who} runs {key} {theirs} and rank 0 runs {ours}; install the same for all ranks"
            )
        if found := _difference(other.settings, first.settings):
            key, theirs, ours = found
            return (
                f"{who} has {key}={theirs!r} and rank 0 has {key}={ours!r}; start all ranks with "
                "the same settings"
            )
    return None


def find_other_bits(everyone: Sequence[Facts]) -> str | None:
    """Return why the last bits may differ from those of one process, with the fix; else None."""
    first = everyone[0]
    for other in everyone[1:]:
        if found := _difference(other.computing, first.computing):
            key, theirs, ours = found
            return (
                f"rank {other.member.rank} computes with {key} {theirs} and rank 0 with {ours}, so "
                f"results are not those of one process bit for bit; {_WAYS_OUT[key]}"
            )
    return None


def have_own_devices(everyone: Sequence[Facts]) -> bool:
    """Return whether each rank has its own CUDA device, as NCCL needs."""
    devices = [facts.device for facts in everyone]
    return None not in devices and len({*devices}) == len(devices)


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first key whose values differ, and both values."""
    for key in sorted({*theirs, *ours}):
        if theirs.get(key) != ours.get(key):
            return key, theirs.get(key), ours.get(key)
    return None


def find_lost(members: list[Member]) -> str:
    """Return a sentence on which of `members` on this host ended or is stopped; "" if none."""
    deadline = time.monotonic() + _LOOK_SECONDS
    while time.monotonic() <= deadline:
        states = [(each, each.condition()) for each in members]
        found = [f"{each} is {state}" for each, state in states if state in ("gone", "stopped")]
        if found:
            return " and ".join(found)
        if all(state == "out of sight" for _, state in states):
            break
        time.sleep(0.01)
    return ""
