"""What all tests share: hypothesis profiles, the devices, a fixed number of threads."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

from tgflow import _core

settings.register_profile(
    "default",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True, scope="session")
def _two_threads() -> None:
    """Keep figures and the order of float additions alike on every machine."""
    torch.set_num_threads(2)
    _core.set_num_threads(2)
