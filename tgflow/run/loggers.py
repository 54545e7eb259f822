"""TensorBoard beside a run's own files: `--log-to`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tgflow.checkpoint import Checkpoint, Component
from tgflow.report.callbacks import FigureCallback, TensorBoard
from tgflow.report.label_figures import class_of
from tgflow.run.records import BOARD
from tgflow.train.observe import StepRecord

MAX_BYTES = 64 << 20
"""Size at which the event files of TensorBoard are rotated."""


class RunLogger(FigureCallback, Component):
    """Logs the figures of a run to TensorBoard, if asked; `facts`: `Config.label_facts`."""

    def __init__(self, kind: str | None, path: Path, step: int, facts: Mapping[str, str]) -> None:
        self._facts = facts
        self._board = (
            None if kind is None else TensorBoard(path / BOARD, step=step, max_bytes=MAX_BYTES)
        )

    def on_step(self, record: StepRecord) -> None:
        if self._board is not None:
            super().on_step(record)

    def log(self, step: int, record: Mapping[str, Any]) -> None:
        """Log figures; names of those of the positive label end in it: `edge.ap.is_fraud=1`."""
        if self._board is None:
            return
        record = {
            key
            if (of := class_of(key, self._facts)) is None
            else f"{key}.{self._facts['label_target']}={of}": value
            for key, value in record.items()
        }
        self._board.log(step, record)

    def flush(self) -> None:
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def save(self, writer: Checkpoint) -> None:
        """Flush: logs must not be behind the checkpoint, which has no state of them."""
        self.flush()
