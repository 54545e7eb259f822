"""Shared fixtures: hypothesis profiles, a fixed number of threads, and time limits."""

import gc
import os
import sys
import time
import warnings

import pytest
from hypothesis import settings

from helpers.effort import QUICK_EXAMPLES

# Before torch reads it: idle threads that spin make a busy machine many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The machine may be busy, so examples have no deadline.
settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=QUICK_EXAMPLES)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

LONGEST_ROOMS = {"native", "train", "cuda"}
"""Folders whose tests run first; one worker takes a whole file."""
SLOW_SECONDS = 15.0
"""Processor seconds; a test that takes more must be marked slow."""


TORCH_THREADS, CORE_THREADS = 1, 2
"""Rounding of matrix products depends on the number of torch threads."""


@pytest.fixture(autouse=True, scope="session")
def _fixed_threads():
    import torch  # not by xdist's controller, which runs no tests

    from tgflow import _core

    torch.set_num_threads(TORCH_THREADS)
    _core.set_num_threads(CORE_THREADS)


@pytest.fixture(autouse=True)
def _unchanged_process(_fixed_threads):
    """Fail a test that changes a setting of the process, and restore the setting.

    The state of torch's default generator is restored without a check.
    """
    import torch

    settings = _process_settings()
    before = {name: get() for name, (get, _) in settings.items()}
    random = torch.get_rng_state()
    yield
    torch.set_rng_state(random)
    changed = {}
    for name, (get, put) in settings.items():
        if (now := get()) != before[name]:
            changed[name] = (before[name], now)
            put(before[name])
    assert not changed, f"the test changed settings of the process (before, after): {changed}"


def _process_settings():
    """Return a getter and a setter of each setting that tests must restore."""
    import torch

    from tgflow import _core

    return {
        "torch threads": (torch.get_num_threads, torch.set_num_threads),
        "core threads": (_core.num_threads, _core.set_num_threads),
        "dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        "environment": (_environment, _set_environment),
        "folder": (os.getcwd, os.chdir),
    }


def _environment():
    """Return the environment without variables set by pytest and imported libraries."""
    ours = ("TGFLOW_", "OMP_", "MKL_", "ATEN_", "GOMP_", "CUDA_", "PATH", "HOME")
    return {name: x for name, x in os.environ.items() if name.startswith(ours)}


def _set_environment(variables):
    for name in _environment():
        del os.environ[name]
    os.environ.update(variables)


def pytest_collection_modifyitems(items):
    """Run the longest tests first, so that all workers end at about the same time."""
    items.sort(key=lambda item: not LONGEST_ROOMS.isdisjoint(item.path.parts), reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freeze the imported objects for the garbage collector: torch has a million.

    The fork server of worlds is started here, before any test starts a thread.
    """
    gc.disable()
    found = yield
    if worlds := sys.modules.get("helpers.worlds"):
        worlds.server()
    gc.freeze()
    gc.enable()
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Report tests to be marked slow, by processor time."""
    start = time.process_time()
    result = yield
    seconds = time.process_time() - start
    if seconds > SLOW_SECONDS and item.get_closest_marker("slow") is None:
        text = f"{item.nodeid} took {seconds:.0f} s of the processor: mark it slow"
        warnings.warn(pytest.PytestWarning(text), stacklevel=1)
    return result
