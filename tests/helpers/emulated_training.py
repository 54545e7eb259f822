"""Support for training on an emulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def without_autograd_threads() -> Iterator[None]:
    """An emulated device has no autograd thread."""
    with torch.autograd.set_multithreading_enabled(False):
        yield
