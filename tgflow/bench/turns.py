"""Times several methods call by call, in turns: a noisy machine is then noisy to all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from tgflow import _core


def take_turns(
    methods: Mapping[str, Callable[[int], object]],
    num_calls: int,
    rounds: int = 1,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Return seconds per call, float64 `[num_calls]`, the best of `rounds`.

    Args:
        methods: Called with the number of the call, which is the same for all of them in turn; who
            goes first alternates.
        num_calls: Calls a round.
        rounds: How often all calls are made.
        device: "cuda" waits for the device after every call.
    """
    seconds = {
        name: torch.full((num_calls,), torch.inf, dtype=torch.float64).tolist() for name in methods
    }
    order = list(methods.items())
    for _ in range(rounds):
        for i in range(num_calls):
            for name, call in order:
                seconds[name][i] = min(seconds[name][i], seconds_of(partial(call, i), device))
            order.reverse()
    return {name: torch.tensor(each, dtype=torch.float64) for name, each in seconds.items()}


def seconds_of(call: Callable[[], object], device: str = "cpu") -> float:
    """Return how long `call` takes, the device's work included."""
    on_device = device != "cpu"
    if on_device:
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if on_device:
        torch.cuda.synchronize()
    return time.perf_counter() - started


@contextmanager
def restored_threads() -> Iterator[None]:
    """Leave the numbers of threads, the core's and torch's, as they were found."""
    own, torchs = _core.num_threads(), torch.get_num_threads()
    try:
        yield
    finally:
        _core.set_num_threads(own)
        torch.set_num_threads(torchs)
