"""Runs killed on a faulty machine (`helpers.odd_machine`), with attempts at a second run."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from helpers.campaign import Campaign
from helpers.processes import stat_of
from helpers.warm import WarmProcess
from tgflow.checkpoint.durable.errors import Locked
from tgflow.checkpoint.durable.lock import RunLock

ODD = ("clock", "full", "read-only")
LOCKED, DISK = 73, 74


@dataclass
class OddCampaign(Campaign):
    """A run restarted repeatedly, mostly on a faulty machine."""

    met: Counter[str] = field(default_factory=Counter)
    """Counts by kind: kills on each machine, second runs, failures by a disk."""
    machine: str = ""
    """Machine of the current process; "" is a regular one."""
    _tries_second: bool = False
    _starts_before: int = 0

    def start(self) -> WarmProcess:
        """Start or resume on the faulty machine."""
        odd = ["helpers.odd_machine", f"{self.machine}:{self.random.randrange(1 << 30)}"]
        return self._started(odd if self.machine else ["tgflow"])

    def disturb_once(self) -> bool:
        """Resume until it is killed or fails by its disk; False if it finishes.

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
        """Try a second run while the first is stopped, so that it cannot finish before."""
        has_begun = self._starts() > self._starts_before  # and so has the directory to itself
        if not (self._tries_second and has_begun) or child.poll() is not None:
            return
        child.send_signal(signal.SIGSTOP)
        while child.poll() is None and _state_of(child) != "T":
            time.sleep(0.001)
        if child.poll() is not None or not self._is_locked():
            return  # it had finished, except for its process exit
        second = self._started(["tgflow"])
        out, _ = second.communicate(timeout=120)
        assert second.returncode == LOCKED, out
        self.met["second runs"] += 1

    def _is_locked(self) -> bool:
        """Return whether a run holds the lock of the directory."""
        try:
            RunLock(self.out / ".lock").release()
        except Locked:
            return True
        return False

    def _check_end(self, child: WarmProcess, out: str) -> bool:
        """Return whether a process that was not killed has work left."""
        if child.returncode == DISK and self.machine in ("full", "read-only"):
            self.met[f"ends, {self.machine}"] += 1
            return True
        return super()._check_end(child, out)


def _state_of(child: WarmProcess) -> str:
    """Return the Linux state letter of a process; "T" is stopped."""
    return stat_of(child.pid)[0]
