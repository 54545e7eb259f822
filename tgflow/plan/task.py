"""Which batches to prepare, and what becomes of one that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

Task = tuple[int, int]
"""Which batch to prepare: (epoch, index)."""


class BatchError(RuntimeError):
    """Preparing a batch failed; the cause is chained."""


def run_task(prepare: Callable[[int, int], T], task: Task) -> T:
    """Return what `prepare` makes of a task.

    Raises:
        BatchError: If that fails.
    """
    epoch, index = task
    try:
        return prepare(epoch, index)
    except Exception as error:
        raise batch_error(task, error) from error


def batch_error(task: Task, error: Exception) -> BatchError:
    """Return the error that says which batch could not be prepared, and why."""
    epoch, index = task
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    return BatchError(f"preparing batch {index} of epoch {epoch} failed: {where}{error}")
