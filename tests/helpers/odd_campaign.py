"""Runs that are killed on a machine that is odd: see `helpers.odd_machine`; beside a second run."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from helpers.campaign import Campaign
from helpers.processes import stat_of
from helpers.warm import WarmProcess
from tgflow.durable.errors import Locked
from tgflow.durable.lock import RunLock

ODD = ("clock", "full", "read-only")
LOCKED, DISK = 73, 74


@dataclass
class OddCampaign(Campaign):
    """A run that is started again and again, mostly on a machine that is odd in some way."""

    met: Counter[str] = field(default_factory=Counter)
    """What it went through, by what it was: kills on each machine, second runs, ends by a disk."""
    machine: str = ""
    """Of the process that runs; "" is an ordinary one."""
    _tries_second: bool = False
    _starts_before: int = 0

    def start(self) -> WarmProcess:
        """Begin, or go on, on the machine."""
        odd = ["helpers.odd_machine", f"{self.machine}:{self.random.randrange(1 << 30)}"]
        return self._started(odd if self.machine else ["tgflow"])

    def disturb_once(self) -> bool:
        """Go on until it is killed, or its disk ends it; False if it came to its end.

        A second run of the directory may be tried meanwhile, which must be refused.
        """
        self.machine = self.random.choice(("", "", *ODD))
        self._tries_second = self.random.random() < 0.2
        before, self._starts_before = self.kills, self._starts()
        goes_on = self.kill_once()
        self.met[f"kills, {self.machine or 'ordinary'}"] += self.kills - before
        self.machine = ""
        return goes_on

    def _before_kill(self, child: WarmProcess) -> None:
        """Try a second run while it stands still, or it would be done before that has begun."""
        has_begun = self._starts() > self._starts_before  # and so has the directory to itself
        if not (self._tries_second and has_begun) or child.poll() is not None:
            return
        child.send_signal(signal.SIGSTOP)
        while child.poll() is None and _state_of(child) != "T":
            time.sleep(0.001)
        if child.poll() is not None or not self._is_locked():
            return  # it had ended, or all but its process had
        second = self._started(["tgflow"])
        out, _ = second.communicate(timeout=120)
        assert second.returncode == LOCKED, out
        self.met["second runs"] += 1

    def _is_locked(self) -> bool:
        """Return whether a run has the directory to itself."""
        try:
            RunLock(self.out / ".lock").release()
        except Locked:
            return True
        return False

    def _check_end(self, child: WarmProcess, out: str) -> bool:
        """Return whether there is more to come of a process that was not killed."""
        if child.returncode == DISK and self.machine in ("full", "read-only"):
            self.met[f"ends, {self.machine}"] += 1
            return True
        return super()._check_end(child, out)


def _state_of(child: WarmProcess) -> str:
    """Return the letter that Linux has for the state of a process; "T" is stopped."""
    return stat_of(child.pid)[0]
