"""Trainer callbacks that log figures: to TensorBoard, or a custom logger."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tgflow.base.describe import described
from tgflow.base.extras import install_command
from tgflow.train.observe import Callback, EpochRecord, StepRecord

__all__ = ["FigureCallback", "TensorBoard"]

PLACES = frozenset({"index", "start", "stop", "epoch", "seed"})
"""Figures of a record that only give its position, as its step does."""
_FIGURE_BYTES = 500
"""More than a figure takes in an event file: files are measured before they can be full."""


class FigureCallback(Callback, ABC):
    """Base class of loggers: logs figures of steps or epochs; subclasses define `log`.

    Example:
        >>> class Printed(tg.callbacks.FigureCallback):
        ...     def log(self, step, figures):
        ...         print(step, "events,", figures["lag_events"], "wait")
        >>> trainer = tg.ContinualTrainer(tg.TGN(), tg.TemporalGraph())
        >>> _ = trainer.run([events], Printed())
        4 events, 0 wait
    """

    def on_step(self, record: StepRecord) -> None:
        """Log a micro-batch, by the events learned so far."""
        self.log(record.stop, record.to_json())

    def on_epoch(self, record: EpochRecord) -> None:
        """Log an epoch, by the epochs trained so far."""
        self.log(record.epoch + 1, record.to_json())

    @abstractmethod
    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Log the figures of a step, by name; steps increase."""

    def flush(self) -> None:
        """Do nothing, for loggers that do not buffer."""

    def close(self) -> None:
        """Do nothing, for loggers without resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
        self._make = _summary_writer()
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
        for name, value in figures.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in PLACES and is_number and math.isfinite(value):
                self._writer.add_scalar(name.replace(".", "/"), value, step)
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


def check_logger(kind: str | None) -> None:
    """Raise ModuleNotFoundError if a run cannot log to TensorBoard, and should."""
    if kind is not None:
        _summary_writer()


def _summary_writer() -> Any:
    try:
        return import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        name = error.name or "tensorboard"
        raise ModuleNotFoundError(
            f"logging to tensorboard needs {name}; {install_command('tensorboard')}", name=name
        ) from None
