"""TensorBoard logger."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tgflow.base.describe import described
from tgflow.report.callbacks.logger import FigureCallback, group_figures, package


@described
class TensorBoard(FigureCallback):
    """Logs figures as scalars for TensorBoard: `tensorboard --logdir DIRECTORY` shows them.

    Names are grouped: `running.ap` is under `running/`. A thread writes them at least every two
    minutes.

    Args:
        directory: Directory of the event files; each logging process adds one.
        step: Current step of the training: on resume, TensorBoard ignores later steps of earlier
            event files.

    Raises:
        ModuleNotFoundError: If the package tensorboard is not installed.
        OSError: If the directory cannot be written to.

    Example:
        >>> with tg.callbacks.TensorBoard("board") as logger:
        ...     logger.log(200, {"loss": 0.7, "running.ap": 0.8})
    """

    def __init__(self, directory: str | os.PathLike[str], *, step: int = 0) -> None:
        self.directory = Path(directory)
        writer = package("tensorboard").SummaryWriter
        self._writer = writer(str(self.directory), purge_step=step + 1)

    def _facts(self) -> dict[str, object]:
        return {"directory": str(self.directory)}

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Write the figures of a step."""
        for name, value in group_figures(figures).items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Flush all figures to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        self._writer.close()
