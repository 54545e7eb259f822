"""Models with equal needs share the batches prepared for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tgflow.cuda.device import Device
from tgflow.graph.batch import Batch
from tgflow.nn.model import TemporalModel
from tgflow.plan.device_preparer import DevicePreparer, MakeBatches, WantedBatch, one_by_one
from tgflow.train.config import ContinualConfig
from tgflow.train.plans import PREDICT, MicroBatchPlans, negatives_learned


def needs_of(model: TemporalModel, config: ContinualConfig) -> tuple[Any, ...]:
    """Return the settings that a model's batches depend on, beside those shared by all models."""
    strategy = config.strategy or model.strategy
    reads_memory = model.state is not None if model.reads_nodes else None
    learned = negatives_learned(model, config)
    return model.fanouts, strategy, reads_memory, (*model.counts, model.counts_dtype), learned


class Stopwatch:
    """Seconds that threads spent preparing a group's batches."""

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._seconds = [0.0, 0.0]  # to predict, to learn from

    @contextmanager
    def preparing(self, epoch: int) -> Iterator[None]:
        """Context manager around the preparation of a batch of `epoch`; for any thread."""
        begin = time.thread_time()
        yield
        seconds = time.thread_time() - begin
        with self._adding:
            self._seconds[int(epoch != PREDICT)] += seconds

    def seconds(self, *, learns: bool) -> float:
        """Return the seconds spent for a model."""
        return sum(self._seconds) if learns else self._seconds[0]


@dataclass(frozen=True, slots=True)
class GroupPlans:
    """The plans of all groups as one source for a loader; a micro-batch has `sizes` batches."""

    groups: Sequence[MicroBatchPlans]
    watches: Sequence[Stopwatch]
    sizes: Sequence[int]

    @property
    def gpu(self) -> Device | None:
        """The GPU on which batches are made; None: host memory."""
        return self.groups[0].gpu

    def __len__(self) -> int:
        return len(self.groups[0])

    def batch(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return a batch of the group whose turn it is, or slice `number` of it."""
        group, epoch = self._which(epoch, index)
        with self.watches[group].preparing(epoch):
            return self.groups[group].batch(epoch, index, number)

    def asked(self, epoch: int, index: int, *part: Any) -> WantedBatch:
        """Return what to make for a task, by the group whose turn it is."""
        group, epoch = self._which(epoch, index)
        asked = self.groups[group].asked(epoch, index, *part)
        return replace(asked, group=group, watch=partial(self.watches[group].preparing, epoch))

    def batches_on(self, gpu: Device, num_slots: int) -> MakeBatches:
        """Return the maker of the same batches on a GPU; see `tgflow.Plan.batches_on`."""
        first = self.groups[0]
        if self.gpu is not None:
            preparer = DevicePreparer(first.predict.graph, gpu, first.slots)
            return preparer.batches(num_slots, self.asked)
        makes = [plans.copies_on(gpu) for plans in self.groups]

        def make(epoch: int, index: int, *part: Any) -> Batch:
            group, epoch = self._which(epoch, index)
            with self.watches[group].preparing(epoch):
                return makes[group](epoch, index, *part)

        return one_by_one(make)

    def _which(self, epoch: int, index: int) -> tuple[int, int]:
        for group in turns(len(self.groups), index):
            if epoch < self.sizes[group]:
                return group, epoch
            epoch -= self.sizes[group]
        raise IndexError(f"a micro-batch has {sum(self.sizes)} batches")


def turns(num: int, index: int) -> list[int]:
    """Return the order of groups or models in micro-batch `index`: rotated, for fair caches."""
    return [(turn + index) % num for turn in range(num)]
