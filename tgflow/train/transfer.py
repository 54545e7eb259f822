"""Batches on their way to the model's device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from tgflow.batch import Batch


def to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Return the batches on `device`, in order; those that are there are not copied.

    A copy to a GPU is from pinned memory and behind the host, on the current CUDA stream.
    """
    if device.type == "cpu":
        return iter(batches)
    return (_moved(batch, device) for batch in batches)


def _moved(batch: Batch, device: torch.device) -> Batch:
    if batch.eid.device == device:
        return batch
    pinned = batch.pin() if device.type == "cuda" else batch
    return pinned.to(device, non_blocking=True)
