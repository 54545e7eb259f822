"""Which batches to prepare, and what becomes of one that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

Task = tuple[int, int] | tuple[int, int, object]
"""Which batch to prepare: (epoch, index); (epoch, index, number) for a slice of it; or with what
was decided of it before, see `tgflow.plan.reusing`."""


class BatchError(RuntimeError):
    """Preparing a batch failed; the cause is chained."""


def run_task(prepare: Callable[..., T], task: Task) -> T:
    """Return what `prepare` makes of a task.

    Raises:
        BatchError: If that fails.
    """
    try:
        return prepare(*task)
    except Exception as error:
        raise batch_error(task, error) from error


def batch_error(task: Task, error: Exception) -> BatchError:
    """Return the error that says which batch could not be prepared, and why."""
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    return BatchError(f"preparing {task_name(task)} failed: {where}{error}")


def task_name(task: Task) -> str:
    """Return what a task prepares, in words."""
    epoch, index, *part = task
    slices = "".join(f"slice {each} of " for each in part if isinstance(each, int))
    return f"{slices}batch {index} of epoch {epoch}"
