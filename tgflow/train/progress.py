"""The counters and metrics of a continual run, which a checkpoint carries on."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tgflow.checkpoint.typed import read_as
from tgflow.train.observe import RunningMean
from tgflow.train.timeline import Timeline


@dataclass(slots=True)
class Progress:
    """What a run has done so far; numbers only, so that it passes through JSON unchanged."""

    running: RunningMean
    timeline: Timeline = field(default_factory=Timeline)
    num_events: int = 0
    num_steps: int = 0
    num_fallbacks: int = 0
    num_skipped: int = 0
    """What was left out of learning as it was not finite."""
    wall_seconds: float = 0.0
    compute_seconds: float = 0.0
    preparation_seconds: float = 0.0
    """For which a GPU's stream was busy with preparing batches."""
    step_seconds: float = 0.0
    """Wall time of the latest step."""
    best_replay_ap: float | None = None
    """The highest running AP on replayed events."""
    clock: float = 0.0
    """When the latest step ended; of this process only."""
    compute_clock: float = 0.0
    """The learner's compute time then."""
    preparation_clock: float = 0.0
    """The loader's time of preparation then."""

    @classmethod
    def new(cls, half_life: float) -> Progress:
        """Return the progress of a new run."""
        return cls(RunningMean(half_life))

    @classmethod
    def from_json(cls, saved: Any) -> Progress:
        """Return the progress that `to_json` turned into `saved`.

        Raises:
            UntrustedCheckpoint: If it has not.
        """
        progress: Progress = read_as(cls, saved, "progress")
        return progress

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes back, as plain values: a copy."""
        saved = {name: getattr(self, name) for name in _NUMBERS}
        return saved | {"running": asdict(self.running), "timeline": self.timeline.to_json()}

    def resume(self, compute_seconds: float, preparation_seconds: float = 0.0) -> None:
        """Start the clock; the seconds are the learner's and the loader's, which only grow."""
        self.clock = time.perf_counter()
        self.compute_clock = compute_seconds
        self.preparation_clock = preparation_seconds

    def add(
        self,
        start: int,
        stop: int,
        measured: dict[str, float],
        *,
        loss: float | None,
        replay_ap: float | None,
        num_fallbacks: int,
        ended: float,
        compute_seconds: float,
        preparation_seconds: float = 0.0,
    ) -> None:
        """Take in the step over events `[start, stop)`, done at `ended` by `perf_counter`."""
        learned = {"loss": loss, "replay_ap": replay_ap}
        known = {name: value for name, value in learned.items() if value is not None}
        self.running.add(measured | known)
        self.timeline.add(start, stop, measured | known)
        self.num_events += stop - start
        self.num_steps += 1
        self.num_fallbacks += num_fallbacks
        if replay_ap is not None:
            latest = self.running.means()["replay_ap"]
            self.best_replay_ap = max(latest, self.best_replay_ap or latest)
        self.step_seconds = ended - self.clock
        self.wall_seconds += self.step_seconds
        self.compute_seconds += compute_seconds - self.compute_clock
        self.clock, self.compute_clock = ended, compute_seconds
        self.preparation_seconds += preparation_seconds - self.preparation_clock
        self.preparation_clock = preparation_seconds

    def forgetting(self) -> float | None:
        """Return how far the running AP on replayed events is below its highest, at least 0."""
        if self.best_replay_ap is None:
            return None
        return self.best_replay_ap - self.running.means()["replay_ap"]

    def events_per_second(self) -> float:
        """Return events over wall time, 0 before the first step."""
        return self.num_events / self.wall_seconds if self.wall_seconds else 0.0

    def overhead_share(self) -> float:
        """Return the share of wall time outside forward, backward and optimizer."""
        return 1 - self.compute_seconds / self.wall_seconds if self.wall_seconds else 0.0

    def preparation_share(self) -> float | None:
        """Return the share of wall time in which a GPU's stream was busy with preparing batches.

        None where no GPU prepares batches, and none are copied to one.
        """
        return self.preparation_seconds / self.wall_seconds if self.preparation_seconds else None

    def summary(self) -> dict[str, Any]:
        """Return what a result says of the run as a whole; no key for what is unknown."""
        out: dict[str, Any] = {
            "num_steps": self.num_steps,
            "num_fallbacks": self.num_fallbacks,
            "num_skipped": self.num_skipped,
            "epoch_seconds": self.wall_seconds,
            "events_per_second": self.events_per_second(),
            "overhead_share": self.overhead_share(),
            "preparation_share": self.preparation_share(),
            "forgetting": self.forgetting(),
        }
        out |= {f"running.{name}": value for name, value in self.running.means().items()}
        return {name: value for name, value in out.items() if value is not None}


_NUMBERS = [entry.name for entry in fields(Progress) if entry.name not in ("running", "timeline")]
