"""TensorBoard beside a run's own files: `--log-to`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tgflow.checkpoint import Checkpoint, Component
from tgflow.report.callbacks import TensorBoard
from tgflow.report.label_figures import class_of
from tgflow.run.records import BOARD

MAX_BYTES = 64 << 20
"""Size at which the event files of TensorBoard are rotated."""


class RunLogger(TensorBoard, Component):
    """Logs the figures of a run to TensorBoard, with `Config.label_facts`."""

    def __init__(self, path: Path, step: int, facts: Mapping[str, str]) -> None:
        super().__init__(path / BOARD, step=step, max_bytes=MAX_BYTES)
        self._label = facts

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Log figures; names of those of the positive label end in it: `edge.ap.is_fraud=1`."""
        named = {}
        for key, value in figures.items():
            of = class_of(key, self._label)
            named[key if of is None else f"{key}.{self._label['label_target']}={of}"] = value
        super().log(step, named)

    def save(self, writer: Checkpoint) -> None:
        """Flush: logs must not be behind the checkpoint, which has no state of them."""
        self.flush()
