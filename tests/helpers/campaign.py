"""Runs of the command line in processes of their own, that are killed at random and go on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from helpers.processes import environment

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass
class Campaign:
    """A run that is started again and again.

    Args:
        out: Its directory.
        flags: Of the command, but for --out and --resume.
        seed: Seeds when it is killed.
        command: Of tgflow: run or compare.
    """

    out: Path
    flags: list[str]
    seed: int = 0
    command: str = "run"
    faults: str = ""
    """Armed in the process, as `helpers.faults.arm` takes them."""
    kills: int = 0
    at: list[int] = field(default_factory=list)
    """After how many micro-batches it was killed."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def start(self) -> subprocess.Popen[str]:
        """Begin, or go on."""
        program = ["-m", "helpers.faults", self.faults] if self.faults else ["-m", "tgflow"]
        command = [sys.executable, *program, self.command, *self.flags]
        command += ["--out", str(self.out), "--resume"]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment() | ENVIRONMENT,
        )

    def batches(self) -> int:
        """Return how many micro-batches are on record."""
        try:
            return (self.out / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def kill_once(self, most_batches: int = 8, timeout: float = 120.0) -> bool:
        """Go on, and kill it somewhere in the next micro-batches; False if it ended before."""
        child = self.start()
        deadline = time.monotonic() + timeout
        if self.random.random() < 0.2:  # while it starts, or recovers
            deadline = time.monotonic() + self.random.uniform(0.0, 3.0)
        goal = self._recovered(child, deadline) + self.random.randint(1, most_batches)
        while child.poll() is None and time.monotonic() < deadline and self.batches() < goal:
            time.sleep(0.002)
        time.sleep(self.random.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        out, _ = child.communicate()
        if child.returncode != -signal.SIGKILL:
            assert child.returncode == 0, out
            return False
        self.kills += 1
        self.at.append(self.batches())
        return True

    def _recovered(self, child: subprocess.Popen[str], deadline: float) -> int:
        """Wait until it has cut its records to the checkpoint's; returns how many it has then."""
        starts = self._starts()
        while child.poll() is None and time.monotonic() < deadline and self._starts() == starts:
            time.sleep(0.002)
        return self.batches()

    def _starts(self) -> int:
        try:
            return (self.out / "run.log").read_text().count('"event": "start"')
        except FileNotFoundError:
            return 0

    def finish(self, timeout: float = 300.0) -> None:
        """Go on to the end."""
        child = self.start()
        out, _ = child.communicate(timeout=timeout)
        assert child.returncode == 0, out

    def letters(self) -> list[str]:
        """Return the dead letters, sorted: which partition is polled first is left to chance."""
        files = sorted((self.out / "dead-letters").glob("*.jsonl"))
        return sorted(line for file in files for line in file.read_text().splitlines())

    def rows(self) -> dict[str, int]:
        """Return what became of the rows."""
        rows: dict[str, int] = json.loads((self.out / "metrics.json").read_text())["rows"]
        return rows
