"""Multi-rank runs whose ranks are killed at random, sometimes all at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from helpers.campaign import ENVIRONMENT, Campaign
from helpers.processes import children_of, environment, is_there


def rank_pids(parent: int) -> dict[int, int]:
    """Return the rank processes of a launcher, by rank."""
    found = {}
    for pid, variables in children_of(parent, "environ").items():
        of_rank = [name for name in variables.split(b"\0") if name.startswith(b"RANK=")]
        if of_rank:
            found[int(of_rank[0].removeprefix(b"RANK="))] = pid
    return found


@dataclass
class RankCampaign(Campaign):
    """A multi-rank run whose ranks restart automatically after any kills."""

    world: int = 3
    """Number of ranks at the start."""

    def start(self) -> subprocess.Popen[str]:
        """Start or resume."""
        command = [sys.executable, "-m", "tgflow", self.command, *self.flags]
        command += ["--out", str(self.out), "--resume"]
        command += ["--nproc", str(self.world), "--max-restarts", "1000"]
        with self.said.open("a") as said:
            return subprocess.Popen(
                command, stdout=said, stderr=said, text=True, env=environment() | ENVIRONMENT
            )

    @property
    def said(self) -> Path:
        """Output printed so far."""
        return self.out.with_suffix(".said")

    def kill_ranks(self, kills: int) -> None:
        """Resume, kill so many ranks, each of which ends the others, and then all of them."""
        child = self.start()
        wanted = self.kills + kills
        while self.kills < wanted and self._kill_a_rank(child):
            pass
        ranks = rank_pids(child.pid)
        child.kill()
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        child.wait()
        while any(is_there(pid) for pid in ranks.values()):
            time.sleep(0.01)

    def _kill_a_rank(self, child: subprocess.Popen[str], timeout: float = 240.0) -> bool:
        """Kill a rank within the next micro-batches; False if the run finishes before."""
        deadline = time.monotonic() + timeout
        if self.random.random() < 0.2:  # while they start, or recover
            deadline = time.monotonic() + self.random.uniform(0.0, 6.0)
        goal = self._recovered(child, deadline) + self.random.randint(1, 8)
        while child.poll() is None and time.monotonic() < deadline and self.batches() < goal:
            time.sleep(0.002)
        time.sleep(self.random.uniform(0, 0.05))
        if child.poll() is not None:
            assert child.returncode == 0, self.said.read_text()
            return False
        ranks = rank_pids(child.pid)
        if ranks:  # else they are about to be started
            os.kill(ranks[self.random.choice(sorted(ranks))], signal.SIGKILL)
            self.kills += 1
            self.at.append(self.batches())
        return True

    def finish(self, timeout: float = 600.0) -> None:
        """Resume until the end."""
        assert self.start().wait(timeout) == 0, self.said.read_text()
