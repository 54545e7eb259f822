"""What a loader has of a source of batches for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tgflow.batch import Batch


class DeviceBatches(Protocol):
    """Makes batches on a GPU for one pass. Any thread may make them, on its current stream."""

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it."""
        ...

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again, behind the current stream's work so far."""
        ...

    def close(self) -> None:
        """End the pass: free what was made and not freed, behind the current stream's work."""
        ...


@dataclass(frozen=True)
class OwnedBatches:
    """Batches whose memory is theirs, as long as anybody has them."""

    prepare: Callable[..., Batch]
    """Takes a `tgflow.plan.task.Task`, spread out."""

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it."""
        return self.prepare(epoch, index) if number is None else self.prepare(epoch, index, number)

    def free(self, batch: Batch) -> None:
        """Leave that to whoever lets go of it."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class BatchesByEpoch:
    """Batches of one epoch from one source, and of all others from another."""

    epoch: int
    of_epoch: DeviceBatches
    of_others: DeviceBatches

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it."""
        return self._of(epoch).make(epoch, index, number)

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again."""
        self._of(batch.epoch).free(batch)

    def close(self) -> None:
        """End the pass."""
        self.of_epoch.close()
        self.of_others.close()

    def _of(self, epoch: int) -> DeviceBatches:
        return self.of_epoch if epoch == self.epoch else self.of_others
