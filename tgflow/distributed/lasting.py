"""Failures that no restart mends, where torchrun's agents keep them from one attempt to the next.

torchrun knows no codes: it restarts whatever has failed. So whoever fails for good says so in the
store of the agents, which outlives the ranks and belongs to one run of torchrun, and later attempts
end by it before they wait for anybody.
"""

from __future__ import annotations

import json
from contextlib import suppress

from torch.distributed import Store  # type: ignore[attr-defined]

from tgflow.distributed.launch import Launch
from tgflow.distributed.meeting import open_agent_store

_KEY = "tgflow/lasting-failure"
_SECONDS = 10.0
"""For the agents' store to answer; ranks that find none end by that where they meet."""


class EarlierFailure(RuntimeError):
    """An attempt before this one has failed for good.

    Args:
        text: What went wrong, and the way out.
        code: The exit code that stands for it.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code


class LastingFailures:
    """What has ended an attempt for good; of launchers without a store of their own, nothing."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def check(self) -> None:
        """Return if attempts may do better than those before."""
        if self._store is None or not self._store.check([_KEY]):
            return
        said = json.loads(self._store.get(_KEY))
        raise EarlierFailure(
            f"{said['text']} (rank {said['rank']}, in an earlier attempt: no restart mends that)",
            said["code"],
        )

    def note(self, rank: int, text: str, code: int) -> None:
        """Have later attempts end by this, unless another failure came first."""
        if self._store is not None:
            with suppress(RuntimeError):  # the agent is gone, and restarts nothing
                said = {"rank": rank, "text": text, "code": code}
                self._store.compare_set(_KEY, "", json.dumps(said))


def find_failures(launch: Launch, timeout: float) -> LastingFailures:
    """Return what has ended earlier attempts of this launch for good.

    Args:
        launch: How this rank was started.
        timeout: Seconds for all ranks to come.
    """
    if not launch.has_agent:
        return LastingFailures(None)
    try:
        return LastingFailures(open_agent_store(launch, min(timeout, _SECONDS)))
    except RuntimeError:
        return LastingFailures(None)
