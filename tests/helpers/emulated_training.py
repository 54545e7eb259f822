"""Support for training on an emulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from helpers.emulator import tensors
from tgflow.train import results


@pytest.fixture
def emulated_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory the emulated device copies to asynchronously, like pinned memory."""
    made = results._host_memory

    def host_memory(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        memory = made(size, dtype, device)
        return tensors.pin(memory) if device.type == tensors.TYPE else memory

    monkeypatch.setattr(results, "_host_memory", host_memory)
    # an emulated device has no autograd thread
    with torch.autograd.set_multithreading_enabled(False):
        yield
