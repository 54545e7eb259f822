"""TensorBoard logger."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tgflow.base.describe import described
from tgflow.report.callbacks.logger import FigureCallback, group_figures, package

_FIGURE_BYTES = 500
"""More than a figure takes in an event file: files are measured before they can be full."""


@described
class TensorBoard(FigureCallback):
    """Logs figures as scalars for TensorBoard: `tensorboard --logdir DIRECTORY` shows them.

    Names are grouped: `running.ap` is under `running/`. A thread writes them at least every two
    minutes.

    Args:
        directory: Directory of the event files; each logging process adds one.
        step: Current step of the training: on resume, TensorBoard ignores later steps of earlier
            event files.
        max_bytes: Size from which another event file is begun; earlier ones are removed once later
            ones before the last have this size. None: any size.

    Raises:
        ModuleNotFoundError: If the package tensorboard is not installed.
        OSError: If the directory cannot be written to.

    Example:
        >>> with tg.callbacks.TensorBoard("board") as logger:
        ...     logger.log(200, {"loss": 0.7, "running.ap": 0.8})
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, step: int = 0, max_bytes: int | None = None
    ) -> None:
        self.directory, self._max_bytes = Path(directory), max_bytes
        self._make = package("tensorboard").SummaryWriter
        self._before = self._files()
        """Event files before the present one."""
        self._writer = self._make(str(self.directory), purge_step=step + 1)
        self._num_figures = 0
        """Figures since the files were last measured."""
        if max_bytes is not None:
            self._rotate(max_bytes)

    def _facts(self) -> dict[str, object]:
        return {"directory": str(self.directory)}

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Write the figures of a step."""
        for name, value in group_figures(figures).items():
            self._writer.add_scalar(name, value, step)
            self._num_figures += 1
        if self._max_bytes is not None and self._num_figures * _FIGURE_BYTES >= self._max_bytes:
            self._rotate(self._max_bytes)

    def _rotate(self, max_bytes: int) -> None:
        """Begin another event file if the present one is large, and remove the oldest ones."""
        self._num_figures = 0
        self._writer.flush()
        files = self._files()
        self._before &= files
        if sum(each.stat().st_size for each in files - self._before) >= max_bytes:
            self._writer.close()
            self._before = files
            self._writer = self._make(str(self.directory), purge_step=None)
        num_bytes = 0
        for file in sorted(self._before, key=lambda file: -file.stat().st_mtime_ns):
            if num_bytes >= max_bytes:
                file.unlink()
                self._before.remove(file)
            else:
                num_bytes += file.stat().st_size

    def _files(self) -> set[Path]:
        return {*self.directory.glob("events.out.tfevents.*")}

    def flush(self) -> None:
        """Flush all figures to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        self._writer.close()
