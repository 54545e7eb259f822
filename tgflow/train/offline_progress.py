"""How far an offline training is: how many epochs, what they took, and the best of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from tgflow.checkpoint.parts import InCheckpoint, SectionReader, SectionWriter
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.model import TemporalModel


@dataclass(frozen=True, slots=True, eq=False)
class BestEpoch:
    """The best epoch so far, and the model as it was after that epoch's validation."""

    epoch: int
    val: dict[str, float]
    parameters: dict[str, Tensor]
    state: dict[str, Tensor] | None

    @classmethod
    def of(cls, model: TemporalModel, epoch: int, val: dict[str, float]) -> Self:
        """Return the epoch that a model has just been validated after."""
        parameters = {name: x.clone() for name, x in model.state_dict().items()}
        state = None if model.state is None else model.state.state_dict()
        return cls(epoch, val, parameters, state)


@dataclass(slots=True)
class PassTotals:
    """What all training passes took together."""

    epochs: int = 0
    events: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0
    preparation_seconds: float = 0.0

    def since(self, before: PassTotals) -> PassTotals:
        """Return what was added to what there was before."""
        earlier = asdict(before)
        return PassTotals(**{name: value - earlier[name] for name, value in asdict(self).items()})

    @contextmanager
    def passing(self, num_events: int, spent: Callable[[], tuple[float, float]]) -> Iterator[None]:
        """Enclose a pass, which counts once it is done.

        Args:
            num_events: Which it learns from.
            spent: Returns the seconds of computing and of preparation so far.
        """
        begin, (compute, preparation) = time.perf_counter(), spent()
        yield
        done = spent()
        self.epochs += 1
        self.events += num_events
        self.seconds += time.perf_counter() - begin
        self.compute_seconds += done[0] - compute
        self.preparation_seconds += done[1] - preparation


class OfflineProgress(InCheckpoint):
    """What a training has beside its learner after some epochs; each of them begins empty."""

    name = "best"
    state_name = "best_state"

    def __init__(self) -> None:
        self.totals = PassTotals()
        self.best: BestEpoch | None = None

    @property
    def num_epochs(self) -> int:
        """Epochs that were trained."""
        return self.totals.epochs

    @property
    def num_idle(self) -> int:
        """Epochs since the best one, 0 without any."""
        return 0 if self.best is None else self.num_epochs - 1 - self.best.epoch

    def save(self, writer: SectionWriter) -> None:
        """Save it after an epoch; nothing changes what is saved."""
        best = self.best
        assert best is not None, "there is no epoch to save"
        noted = {"epoch": best.epoch, "val": best.val, "has_state": best.state is not None}
        writer.note(self.name, noted | {"totals": asdict(self.totals)})
        writer.put(self.name, best.parameters)
        if best.state is not None:
            writer.put(self.state_name, best.state)

    def load(self, reader: SectionReader) -> None:
        """Be what was saved.

        Raises:
            KeyError: If a section is missing.
            UntrustedCheckpoint: If it is something else.
        """
        noted = read_as(dict[str, Any], reader.meta.get(self.name), self.name)
        totals = read_as(PassTotals, noted.get("totals"), f"{self.name}.totals")
        val = read_as(dict[str, int | float], noted.get("val"), f"{self.name}.val")
        has_state = read_as(bool, noted.get("has_state"), f"{self.name}.has_state")
        epoch = read_natural(noted, "epoch", most=max(totals.epochs - 1, 0))
        state = reader.get(self.state_name) if has_state else None
        self.totals, self.best = totals, BestEpoch(epoch, val, reader.get(self.name), state)
