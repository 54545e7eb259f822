"""What all tests share: hypothesis profiles and a fixed number of threads."""

from __future__ import annotations

import os

# Before torch reads it: idle threads that spin make a busy machine many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

from tgflow import _core

# The machine may be busy: how long an example takes says nothing about it.
settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True, scope="session")
def _two_threads() -> None:
    """Keep the order of float additions, and so every last bit, alike on all machines."""
    torch.set_num_threads(2)
    _core.set_num_threads(2)
