"""Progress of an offline training: epochs, their cost, the best one, and the result's figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.peers import Peers
from tgflow.train.config import OfflineConfig
from tgflow.train.observe import EpochRecord
from tgflow.train.protocols import offline_line


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


class OfflineProgress:
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

    def save(self, writer: Checkpoint) -> None:
        """Save it after an epoch; nothing changes what is saved."""
        best = self.best
        assert best is not None, "there is no epoch to save"
        noted = {"epoch": best.epoch, "val": best.val, "has_state": best.state is not None}
        writer.note(self.name, noted | {"totals": asdict(self.totals)})
        writer.put(self.name, best.parameters)
        if best.state is not None:
            writer.put(self.state_name, best.state)

    def load(self, reader: Checkpoint) -> None:
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


def is_better(select: str, found: Mapping[str, float], best: Mapping[str, float]) -> bool:
    """Return whether an epoch's validation is better than the best one's.

    Args:
        select: `ap` or `mrr`: higher than the best. `ap+auc`: both at least as high, as in DyGLib,
            where an epoch that gains in one and loses in the other counts as no better.
        found: Metrics of the epoch.
        best: Metrics of the best epoch.
    """
    if select == "ap+auc":
        return found["ap"] >= best["ap"] and found["auc"] >= best["auc"]
    return found[select] > best[select]


def chosen_epoch(
    peers: Peers, select: str, epoch: int, val: Mapping[str, float], best: BestEpoch | None
) -> int:
    """Return the best epoch so far, as rank 0 finds it.

    Args:
        peers: All of them call this together.
        select: As `is_better`.
        epoch: The latest one.
        val: Its metrics; of rank 0 alone.
        best: The best one before it; None without any.
    """
    leads = peers.rank == 0
    keeps = best is not None and not (leads and is_better(select, val, best.val))
    chosen = torch.tensor(best.epoch if best is not None and keeps else epoch)
    peers.broadcast(chosen, kind="epoch")
    return int(chosen)


def protocol_figures(
    config: OfflineConfig, graph: TemporalGraph, select: str | None
) -> dict[str, Any]:
    """Return what figures of a training are to be compared by; `select` as `offline_line`."""
    tied = graph.log.tied_share(graph.num_events)
    is_published = (config.val_ratio, config.test_ratio) == (0.15, 0.15)
    return {
        "protocol": config.protocol or ("offline 70/15/15" if is_published else "offline"),
        "protocol_line": offline_line(config, tied, select),
        "tied_share": tied,
        "visibility": config.visibility,
        "negatives": "fixed" if config.fixed_negatives else config.negatives[0],
        "seed": config.seed,
    }


def epoch_record(
    epoch: int, loss: float, val: dict[str, float], took: PassTotals, *, is_best: bool
) -> EpochRecord:
    """Return the record of an epoch, whose training pass took this."""
    return EpochRecord(
        epoch=epoch,
        loss=loss,
        val=val,
        is_best=is_best,
        seconds=took.seconds,
        events_per_second=took.events / took.seconds,
        overhead_share=1 - took.compute_seconds / took.seconds,
    )


def pass_figures(progress: OfflineProgress) -> dict[str, Any]:
    """Return what the passes over the training part took."""
    totals, best = progress.totals, progress.best
    assert best is not None
    figures = {
        "best_epoch": best.epoch,
        "num_epochs": totals.epochs,
        "epoch_seconds": totals.seconds / totals.epochs,
        "events_per_second": totals.events / totals.seconds,
        "overhead_share": 1 - totals.compute_seconds / totals.seconds,
    }
    if totals.preparation_seconds:
        figures["preparation_share"] = totals.preparation_seconds / totals.seconds
    return figures
