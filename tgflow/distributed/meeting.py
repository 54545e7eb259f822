"""Where rank 0 says at which address it is, and the others read it: stale ones may lie there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, Self

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from tgflow.distributed.launch import Launch
from tgflow.durable.fs import replacing

_KEY = "tgflow/rank-0"


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 listens.

    Args:
        host: Its address.
        port: Its port.
        nonce: What only this very start of rank 0 answers there; "" if it is not known.
    """

    host: str
    port: int
    nonce: str

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return what `to_bytes` made into `data`; None if that is something else."""
        try:
            found = json.loads(data)
            return cls(str(found["host"]), int(found["port"]), str(found["nonce"]))
        except (ValueError, KeyError, TypeError):
            return None


class Meeting(Protocol):
    """A place that all ranks know before they know each other."""

    @property
    def port(self) -> int:
        """Where rank 0 is to listen; 0: anywhere."""

    def publish(self, address: Address) -> None:
        """Say where rank 0 listens, in place of what was said before."""

    def find(self) -> Address | None:
        """Return what was said last, perhaps by a rank 0 that is no more; None if nothing was."""


class DirectoryMeeting:
    """A directory of one host."""

    port = 0

    def __init__(self, path: Path) -> None:
        self._file = path / "rank-0.json"

    def publish(self, address: Address) -> None:
        """Replace the file at once."""
        with replacing(self._file, sync=False) as partial:
            partial.write_bytes(address.to_bytes())

    def find(self) -> Address | None:
        """Read the file, if it is there."""
        return Address.from_bytes(self._file.read_bytes()) if self._file.exists() else None


class AgentMeeting:
    """The store of torchrun's agents, which outlives restarts and what they left in it."""

    port = 0

    def __init__(self, store: Store) -> None:
        self._store = store

    def publish(self, address: Address) -> None:
        """Replace what the store has."""
        self._store.set(_KEY, address.to_bytes().decode())

    def find(self) -> Address | None:
        """Read what the store has, without waiting."""
        has_it = self._store.check([_KEY])
        return Address.from_bytes(self._store.get(_KEY)) if has_it else None


class FixedMeeting:
    """An address that whoever started the ranks has chosen: rank 0 listens there."""

    def __init__(self, host: str, port: int) -> None:
        self._address = Address(host, port, "")
        self.port = port

    def publish(self, address: Address) -> None:
        """Do nothing: all know it."""

    def find(self) -> Address | None:
        """Return the address that was chosen."""
        return self._address


def meeting_of(launch: Launch, timeout: float) -> Meeting:
    """Return where the ranks of `launch` meet."""
    if launch.meeting is not None:
        return DirectoryMeeting(Path(launch.meeting))
    if launch.has_agent:
        return AgentMeeting(open_agent_store(launch, timeout))
    assert launch.address is not None
    return FixedMeeting(*launch.address)


def open_agent_store(launch: Launch, timeout: float) -> Store:
    """Return the store of torchrun's agents, which has started the ranks of `launch`."""
    assert launch.address is not None
    host, port = launch.address
    return TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout)
    )
