"""Loggers of a run besides its own files: `--log-to`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tgflow.checkpoint import Checkpoint, Component
from tgflow.report.callbacks import CSVLogger, FigureCallback, Logger, TensorBoard, WandB
from tgflow.report.callbacks.logger import package
from tgflow.report.label_figures import class_of
from tgflow.run.config.schema import LogTo
from tgflow.run.records import LOGS

MAX_BYTES = 64 << 20
"""Size at which metrics.csv and the event files of TensorBoard are rotated."""
_MAKERS: Mapping[LogTo, Callable[[Path, int], Logger]] = {
    "csv": lambda path, step: CSVLogger(path / LOGS["csv"], step=step, max_bytes=MAX_BYTES),
    "tensorboard": lambda path, step: TensorBoard(
        path / LOGS["tensorboard"], step=step, max_bytes=MAX_BYTES
    ),
    "wandb": lambda path, step: WandB(path, step=step, name=str(path)),
}


def check_loggers(kinds: Sequence[LogTo] | None) -> None:
    """Raise ModuleNotFoundError, with the fix, if the package of a logger is not installed."""
    for kind in kinds or ():
        if kind != "csv":
            package(kind)


class RunLoggers(FigureCallback, Component):
    """The loggers of a run, flushed before each checkpoint; `facts`: `Config.label_facts`."""

    def __init__(
        self, kinds: Sequence[LogTo] | None, path: Path, step: int, facts: Mapping[str, str]
    ) -> None:
        self._facts = facts
        with ExitStack() as opened:
            self._loggers = [
                opened.enter_context(closing(_MAKERS[kind](path, step))) for kind in kinds or ()
            ]
            self._opened = opened.pop_all()

    def log(self, step: int, record: Mapping[str, Any]) -> None:
        """Log figures; names of those of the positive label end in it: `edge.ap.is_fraud=1`."""
        record = {
            key
            if (of := class_of(key, self._facts)) is None
            else f"{key}.{self._facts['label_target']}={of}": value
            for key, value in record.items()
        }
        for each in self._loggers:
            each.log(step, record)

    def flush(self) -> None:
        for each in self._loggers:
            each.flush()

    def close(self) -> None:
        """Close all loggers, even if one of them fails."""
        self._opened.close()

    def save(self, writer: Checkpoint) -> None:
        """Flush: logs must not be behind the checkpoint, which has no state of them."""
        self.flush()
