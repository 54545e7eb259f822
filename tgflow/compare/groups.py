"""Models whose needs agree share the batches that are prepared for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.model import TemporalModel
from tgflow.plan.device_batches import DeviceBatches
from tgflow.train.config import ContinualConfig
from tgflow.train.microbatch import MicroBatchPlans


def needs_of(model: TemporalModel, config: ContinualConfig) -> tuple[Any, ...]:
    """Return what a model's batches depend on, beside what all models of a comparison share."""
    strategy = config.strategy or model.strategy
    return model.fanouts, strategy, model.state is not None, model.counts


@dataclass(slots=True)
class Stopwatch:
    """Seconds for which threads were busy with preparing a group's batches."""

    seconds: float = 0.0
    _adding: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose what is to be added; for any thread."""
        begin = time.thread_time()
        yield
        with self._adding:
            self.seconds += time.thread_time() - begin


@dataclass(frozen=True, slots=True)
class GroupPlans:
    """The plans of all groups, side by side, as one source for a loader.

    A micro-batch has some batches of each group: its epochs are those of the group whose turn
    is first, then those of the second, and so on; see `turns`.

    Args:
        groups: The plans of each.
        watches: Those of the groups.
        sizes: Batches of each group for a micro-batch.
    """

    groups: Sequence[MicroBatchPlans]
    watches: Sequence[Stopwatch]
    sizes: Sequence[int]

    @property
    def gpu(self) -> Device | None:
        """Where batches are made: on a GPU, or in host memory."""
        return self.groups[0].gpu

    def __len__(self) -> int:
        return len(self.groups[0])

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a batch of the group whose turn it is."""
        group, epoch = self._which(epoch, index)
        with self.watches[group].measuring():
            return self.groups[group].batch(epoch, index)

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> DeviceBatches:
        """Return what makes the same batches on a GPU; see `tgflow.Plan.batches_on`."""
        return _GroupBatches(
            self, [plans.batches_on(gpu, num_slabs, clock) for plans in self.groups]
        )

    def _which(self, epoch: int, index: int) -> tuple[int, int]:
        for group in turns(len(self.groups), index):
            if epoch < self.sizes[group]:
                return group, epoch
            epoch -= self.sizes[group]
        raise IndexError(f"a micro-batch has {sum(self.sizes)} batches")


def turns(num: int, index: int) -> list[int]:
    """Return in which order groups, or models, have their turns in micro-batch `index`.

    It goes round, so that nobody is always the one who finds the caches warm.
    """
    return [(turn + index) % num for turn in range(num)]


class _GroupBatches:
    """The batches of groups on a GPU.

    Args:
        plans: Says whose turn it is.
        made: What makes the batches of each group.
    """

    def __init__(self, plans: GroupPlans, made: Sequence[DeviceBatches]) -> None:
        self._plans, self._made = plans, made
        self._out: dict[int, DeviceBatches] = {}

    def make(self, epoch: int, index: int) -> Batch:
        """Return a batch of the group whose turn it is."""
        group, epoch = self._plans._which(epoch, index)
        with self._plans.watches[group].measuring():
            batch = self._made[group].make(epoch, index)
        self._out[id(batch.host)] = self._made[group]
        return batch

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again."""
        self._out.pop(id(batch.host)).free(batch)

    def close(self) -> None:
        """End the pass."""
        self._out.clear()
        for made in self._made:
            made.close()
