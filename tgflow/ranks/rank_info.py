"""Facts that each rank reports when it joins, and checks that the ranks are compatible."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Self

import torch

from tgflow.base._native import num_threads
from tgflow.ranks.launch import Launch


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a world."""

    rank: int
    host: str
    pid: int

    @classmethod
    def here(cls, rank: int) -> Self:
        """Return this process as a member."""
        return cls(rank, socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


MOST_BYTES = 1 << 20
"""Largest size of one rank's facts; more is rejected unread."""

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
    return str(torch.cuda.get_device_properties(index).uuid)


def find_disagreement(everyone: Sequence[Facts]) -> str | None:
    """Return the first required fact that differs, with the fix; None if all agree."""
    for rank, key, theirs, ours in _differences(everyone, "versions"):
        return (
            f"rank {rank} runs {key} {theirs} and rank 0 runs {ours}; install the same for all "
            "ranks"
        )
    for rank, key, theirs, ours in _differences(everyone, "settings"):
        return (
            f"rank {rank} has {key}={theirs!r} and rank 0 has {key}={ours!r}; start all ranks with "
            "the same settings"
        )
    return None


def find_other_bits(everyone: Sequence[Facts]) -> str | None:
    """Return why the last bits may differ from those of one process, with the fix; else None."""
    for rank, key, theirs, ours in _differences(everyone, "computing"):
        return (
            f"rank {rank} computes with {key} {theirs} and rank 0 with {ours}, so results are not "
            f"those of one process bit for bit; {_WAYS_OUT[key]}"
        )
    return None


def have_own_devices(everyone: Sequence[Facts]) -> bool:
    """Return whether each rank has its own CUDA device, as NCCL needs."""
    devices = [facts.device for facts in everyone]
    return None not in devices and len({*devices}) == len(devices)


def _differences(everyone: Sequence[Facts], kind: str) -> Iterator[tuple[int, str, Any, Any]]:
    """Yield rank, key, and the values of that rank and of rank 0 where they differ."""
    first: Mapping[str, Any] = getattr(everyone[0], kind)
    for other in everyone[1:]:
        theirs: Mapping[str, Any] = getattr(other, kind)
        for key in sorted({*theirs, *first}):
            if theirs.get(key) != first.get(key):
                yield other.member.rank, key, theirs.get(key), first.get(key)
