"""Batches that are prepared slice by slice: a loader's tasks, and what becomes of its batches."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice

from tgflow.batch import Batch
from tgflow.plan.task import Task
from tgflow.share import Share


def sliced_tasks(tasks: Iterable[Task], wanted: range) -> Iterator[Task]:
    """Yield a task for each wanted slice of each batch, in order; tasks are pulled lazily."""
    return ((task[0], task[1], number) for task in tasks for number in wanted)


def joined_shares(batches: Generator[Batch], num_wanted: int) -> Generator[Share]:
    """Yield a share of each `num_wanted` slices that come; closing it closes `batches`."""
    with closing(batches):
        while slices := list(islice(batches, num_wanted)):
            yield Share.of(slices)
