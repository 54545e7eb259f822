"""What the environment says of this process: its rank, and where it meets the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tgflow.peers import Shard, WorldError

MEETING_VARIABLE = "TGFLOW_MEETING"
"""The directory in which the ranks that `supervise` started on one host meet."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How this process was started, by torchrun, `supervise`, or something that sets the same.

    Args:
        rank: `RANK`.
        world: `WORLD_SIZE`.
        local_rank: `LOCAL_RANK`, which of the ranks on this host; by `rank` if it is not set.
        local_world: `LOCAL_WORLD_SIZE`, the ranks on this host; `world` if it is not set.
        address: `MASTER_ADDR` and `MASTER_PORT`, if they are set.
        has_agent: Whether torchrun's agent has a store at `address`; else rank 0 opens one there.
        meeting: The directory in which the ranks of one host meet, if there is one.
    """

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
    """Return how this process was started; None if it is the only one.

    Raises:
        WorldError: If variables are missing or make no sense.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    Shard(rank, world)
    if world == 1:
        return None
    meeting = environ.get(MEETING_VARIABLE)
    address = None
    if meeting is None:
        if "MASTER_ADDR" not in environ:
            raise WorldError("WORLD_SIZE is set and MASTER_ADDR is not; start ranks by torchrun")
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


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise WorldError(
            f"{name} must be a whole number, got {text!r}; start ranks by torchrun"
        ) from None
