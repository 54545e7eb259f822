"""What all tests share: hypothesis profiles, a fixed number of threads, and a limit to patience."""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

from helpers.effort import QUICK_EXAMPLES

# Before torch reads it: idle threads that spin make a busy machine many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The machine may be busy: how long an example takes says nothing about it.
settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=QUICK_EXAMPLES)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

LONGEST_ROOMS = {"native", "train", "cuda"}
"""Folders whose tests begin: one worker takes a whole file."""
SLOW_SECONDS = 15.0
"""Of the processor: a test that takes more is to be marked slow."""


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    """Keep the order of float additions, and so every last bit, alike on all machines."""
    import torch  # not by xdist's controller, which runs no tests

    from tgflow import _core

    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
    _core.set_num_threads(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that all workers end at about the same time."""
    items.sort(key=lambda item: not LONGEST_ROOMS.isdisjoint(item.path.parts), reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Let garbage be looked for only among what tests make: torch brings a million objects.

    The server of worlds is forked here, before any test starts a thread.
    """
    gc.disable()
    found = yield
    if worlds := sys.modules.get("helpers.worlds"):
        worlds.server()
    gc.freeze()
    gc.enable()
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Say which tests should be marked slow: those that take long, on however busy a machine."""
    start = time.process_time()
    result = yield
    seconds = time.process_time() - start
    if seconds > SLOW_SECONDS and item.get_closest_marker("slow") is None:
        text = f"{item.nodeid} took {seconds:.0f} s of the processor: mark it slow"
        warnings.warn(pytest.PytestWarning(text), stacklevel=1)
    return result
