"""Results of offline trainings, in memory and in the checkpoints of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    Component,
    UntrustedCheckpoint,
)
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


class OfflineSaves:
    """Keeps the results of entrants, and the newest epoch of the one in training.

    A checkpoint is written when an entrant is done, and after an epoch if the last one was long
    ago. A write failure is reported, and training continues.
    """

    def __init__(
        self,
        store: CheckpointStore | None = None,
        newest: Checkpoint | None = None,
        *,
        every: float = 0.0,
        parts: Sequence[Component] = (),
        command: Literal["compare", "train"] = "compare",
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._store, self._every, self._parts, self._warn = store, every, parts, warn
        self._command = command
        self._step = 0 if store is None or newest is None else store.entries()[-1].step
        self._saved_at = time.monotonic()
        self.trained = [] if newest is None else _trained_of(newest)
        """Finished entrants, in the order of the line-up."""
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
        if self._every and time.monotonic() - self._saved_at >= self._every:
            self._save(trainer)

    def add(self, trained: Trained) -> None:
        """Save the result of the next entrant."""
        self.trained.append(trained)
        self._save(None)

    def _save(self, trainer: OfflineTrainer | None) -> None:
        if self._store is None:
            return
        self._step += 1
        try:
            self._store.save(self._step, self._checkpoint(trainer))
        except OSError as error:
            self._warn(f"no checkpoint was written, training continues: {error}")
        else:
            for part in self._parts:
                part.saved()
        self._saved_at = time.monotonic()

    def _checkpoint(self, trainer: OfflineTrainer | None) -> Checkpoint:
        checkpoint = Checkpoint({})
        under_way: dict[str, Any] | None = None
        if trainer is not None:
            under_way = {}
            trainer.save_progress(checkpoint.prefixed(_NOW, under_way))
        noted = [
            {"key": each.key, "result": dict(each.result), "failure": each.failure}
            for each in self.trained
        ]
        for number, each in enumerate(self.trained):
            rows = torch.from_numpy(each.rows)
            checkpoint.put_sealed(_scores(number), partial(dict[str, Tensor], rows=rows))
        checkpoint.note("trainer", self._command)
        checkpoint.note("under_way", under_way)
        checkpoint.note("trained", noted)
        for part in self._parts:
            part.save(checkpoint)
        return checkpoint


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
