"""Results of offline trainings, in memory and in the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.checkpoint import Checkpoint, CheckpointError, UntrustedCheckpoint
from tgflow.checkpoint.typed import read_as
from tgflow.train.offline import OfflineTrainer

_NOW = "now-"


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Result of an entrant."""

    key: str
    rows: NDArray[Any]
    """float64 `[N, 3]`: its scores of the test's events, see `COLUMNS`; NaN: not scored. `[N, 4]`
    with a task, see `LABEL`."""
    result: Mapping[str, Any]
    """Result of `OfflineTrainer.fit`; empty if it dropped out."""
    failure: Mapping[str, Any] | None = None


class OfflineResults:
    """Results of entrants, and the newest epoch of the one in training, which checkpoints hold.

    One is taken when an entrant is done, and after an epoch if it `is_due`.
    """

    def __init__(
        self,
        newest: Checkpoint | None = None,
        position: int = 0,
        command: Literal["compare", "train"] = "compare",
    ) -> None:
        self._command = command
        self._trainer: OfflineTrainer | None = None
        self.position = position
        """Number of epochs and of results so far, resumes included; numbers the checkpoints."""
        self.trained = [] if newest is None else _trained_of(newest)
        """Finished entrants, in the order of the line-up."""
        self.is_due: Callable[[], bool] = lambda: False
        self.take: Callable[[], object] = lambda: None
        """Takes a checkpoint."""
        self._under_way: Checkpoint | None = None
        if newest is not None:
            noted = read_as(dict[str, Any] | None, newest.meta.get("under_way"), "under_way")
            self._under_way = None if noted is None else newest.prefixed(_NOW, noted)

    def find(self, number: int, key: str) -> Trained | None:
        """Return the result of entrant `number`; None if it is not trained yet."""
        if number >= len(self.trained):
            return None
        found = self.trained[number]
        if found.key != key:
            raise CheckpointError(
                f"the checkpoint has {found.key} instead of {key}: the model list has changed"
            )
        return found

    def resume(self, trainer: OfflineTrainer) -> bool:
        """Resume the unfinished training from its newest epoch; return whether there is one."""
        if self._under_way is None:
            return False
        trainer.load_progress(self._under_way)
        self._under_way = None
        return True

    def after_epoch(self, trainer: OfflineTrainer) -> None:
        """Save the state of a training, if it is due."""
        self._trainer, self.position = trainer, self.position + 1
        if self.is_due():
            self.take()

    def add(self, trained: Trained) -> None:
        """Save the result of the next entrant."""
        self.trained.append(trained)
        self._trainer, self.position = None, self.position + 1
        self.take()

    def save_to(self, writer: Checkpoint) -> None:
        """Save the results, and the training whose epoch is done; later changes do not alter it."""
        under_way: dict[str, Any] | None = None
        if self._trainer is not None:
            under_way = {}
            self._trainer.save_progress(writer.prefixed(_NOW, under_way))
        noted = [
            {"key": each.key, "result": dict(each.result), "failure": each.failure}
            for each in self.trained
        ]
        for number, each in enumerate(self.trained):
            rows = torch.from_numpy(each.rows)
            writer.put_sealed(_scores(number), partial(dict[str, Tensor], rows=rows))
        writer.note("trainer", self._command)
        writer.note("under_way", under_way)
        writer.note("trained", noted)


def _trained_of(checkpoint: Checkpoint) -> list[Trained]:
    """Return the finished entrants of a checkpoint."""
    found = []
    notes = read_as(list[dict[str, Any]], checkpoint.meta.get("trained"), "trained")
    for number, noted in enumerate(notes):
        where, section = f"trained[{number}]", _scores(number)
        rows = checkpoint.get(section)["rows"]
        if rows.dtype != torch.float64 or rows.ndim != 2 or rows.shape[1] not in (3, 4):
            raise UntrustedCheckpoint(
                f"{section} has {rows.dtype} {list(rows.shape)}, which are not scores"
            )
        key = read_as(str, noted.get("key"), f"{where}.key")
        result = read_as(dict[str, Any], noted.get("result"), f"{where}.result")
        failure = read_as(dict[str, Any] | None, noted.get("failure"), f"{where}.failure")
        found.append(Trained(key, rows.numpy(), result, failure))
    return found


def _scores(number: int) -> str:
    return f"c{number:03d}-scores"
