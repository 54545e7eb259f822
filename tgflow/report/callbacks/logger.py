"""Base class of loggers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Self

from tgflow.base.extras import install_command
from tgflow.train.observe import Callback, EpochRecord, StepRecord

PLACES = frozenset({"index", "start", "stop", "epoch", "seed"})
"""Figures of a record that only give its position, as its step does."""


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


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among the figures, without positions."""
    return {
        name: value
        for name, value in figures.items()
        if name not in PLACES
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def group_figures(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return `numbers` with names such as `running/ap`, which dashboards group."""
    return {name.replace(".", "/"): value for name, value in numbers(figures).items()}


def package(extra: str) -> Any:
    """Import and return the module that a logger needs."""
    try:
        return import_module({"tensorboard": "torch.utils.tensorboard"}.get(extra, extra))
    except ImportError as error:
        name = error.name or extra
        raise ModuleNotFoundError(
            f"logging to {extra} needs {name}; {install_command(extra)}", name=name
        ) from None
