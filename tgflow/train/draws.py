"""Draws of torch's own, such as `torch.nn.functional.dropout`, seeded for each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK_63_BITS = (1 << 63) - 1


@contextmanager
def seeded_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's draws on the CPU and on `device`; give the caller's state back afterwards.

    While it lasts, whatever else draws from torch's generators, in any thread, gets these draws.
    On the generators themselves: `torch.manual_seed` takes milliseconds on a machine without a GPU,
    as it records where it was called, for when there is one. Does not synchronize.
    """
    generators = _default_generators(device)
    callers = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed & _MASK_63_BITS)
    try:
        yield
    finally:
        for generator, state in zip(generators, callers, strict=True):
            generator.set_state(state)


def _default_generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that draws of a model on `device` may come from."""
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
