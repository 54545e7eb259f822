"""How this process was started as a rank, and the network interfaces of this host."""

from __future__ import annotations

import fcntl
import platform
import re
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tgflow.base.peers import Shard, WorldError

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
MEETING_VARIABLE = "TGFLOW_MEETING"
"""Rendezvous directory of the ranks that `supervise` started on one host."""
_TORCHRUN = "start ranks with torchrun"
_LINE = "tgflow run ... --set ranks.interface=NAME"


class _Launcher(NamedTuple):
    """Environment variables of a launcher, and what its ranks lack without an address of rank 0."""

    rank: str
    world: str
    local_rank: str
    local_world: str
    way_out: str


_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _TORCHRUN),
    _Launcher(
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        f"mpirun -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29400 {_LINE}",
    ),
    _Launcher(
        *("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        f"mpirun -genv MASTER_ADDR HOST_OF_RANK_0 -genv MASTER_PORT 29400 {_LINE}",
    ),
    _Launcher(
        *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
        "MASTER_ADDR=$(scontrol show hostnames | head -1) MASTER_PORT=29400 srun -n {world} "
        f"{_LINE}",
    ),
)
"""In order of precedence: a launcher may run inside of a later one's."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch parameters of a rank, from the environment variables of its launcher."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: tuple[str, int] | None = None
    """Host and port of the store; None for a world of one, and with `meeting`."""
    has_agent: bool = False
    """Whether torchrun serves the store; otherwise rank 0 serves it."""
    meeting: str | None = None
    """Directory of the store, made for this start of the ranks."""

    @property
    def one_host(self) -> bool:
        """Whether all ranks are on this host."""
        return self.local_world == self.world


def read_launch(environ: Mapping[str, str]) -> Launch | None:
    """Return the launch parameters of this process; None if no launcher started it.

    Ranks are on one host only if their launcher says so: `LOCAL_WORLD_SIZE`, or the same of Open
    MPI, MPICH or Slurm. `srun` without a world starts single tasks. WorldError if variables are
    missing or invalid, or this is not Linux.
    """
    found = [each for each in _LAUNCHERS if each.world in environ or each.rank in environ]
    if not found or (found[0].world not in environ and found[0].rank != "RANK"):
        return None  # the batch script of Slurm has a rank and no world
    launcher = found[0]
    rank, world = _number(environ, launcher.rank), _number(environ, launcher.world)
    Shard(rank, world)
    if world > 1:
        require_linux()
    local_world = _local_world(environ, launcher)
    local_rank = _number(environ, launcher.local_rank, rank % local_world)
    meeting, address = environ.get(MEETING_VARIABLE), None
    if meeting is None and world > 1:
        if "MASTER_ADDR" not in environ:
            raise WorldError(
                f"{launcher.world} is {world} but MASTER_ADDR is not set, so {world} processes "
                f"would not find each other; {launcher.way_out.format(world=world)}"
            )
        address = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
    has_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Launch(rank, world, local_rank, local_world, address, has_agent, meeting)


def _local_world(environ: Mapping[str, str], launcher: _Launcher) -> int:
    """Return the number of ranks on this host, 1 if it is unknown."""
    text = environ.get(launcher.local_world, "1")
    if launcher.local_world == "SLURM_STEP_TASKS_PER_NODE":  # as 4(x2),1
        sizes: list[str] = []
        for size, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
            sizes += [size] * int(times or 1)
        text = sizes[_number(environ, "SLURM_NODEID", 0)]
    return max(1, _number({launcher.local_world: text}, launcher.local_world))


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
        raise WorldError(f"{name} must be a whole number, got {text!r}; {_TORCHRUN}") from None


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
