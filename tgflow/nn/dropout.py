"""Dropout with draws keyed by step and position, the same on every device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.nn._native import gelu_dropout, is_fused, keep_factors


class Dropout(nn.Module):
    """Zeros a share of the elements in training, and scales up the others to keep the mean.

    Within `DropoutKeys.keyed` the draws are a function of that key, of this module's number in the
    model and of an element's position: the same on every device, and after a resume. Outside, each
    pass draws a key from torch's default generator of the device.

    Args:
        rate: Share of the elements that become 0, from 0 to less than 1.

    Raises:
        ValueError: If `rate` is out of range.
    """

    key: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {rate}")
        self.rate = rate
        self.is_keyed = False
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with elements dropped: float `[N, ...]`."""
        factors = self.of_shape(*x.shape)
        return x if factors is None else x * factors.to(x.dtype)

    def of_shape(self, *shape: int) -> Tensor | None:
        """Return the factors by which `forward` scales a tensor: `factors` of one row."""
        factors = self.factors(1, *shape)
        return None if factors is None else factors.squeeze(0)

    def of_gelu(self, x: Tensor) -> Tensor:
        """Return GELU(x) with elements dropped: float `[N, ...]`.

        On the CPU, while gradients are recorded, one pass does both and overwrites `x` with the
        slope, so no other operation may read `x`.
        """
        if not (is_fused(x) and x.requires_grad and x.is_contiguous()):
            dropped: Tensor = self(F.gelu(x))
            return dropped
        rate = self.rate if self.training else 0.0
        return gelu_dropout(x, self._current_key() if rate else self.key, rate)

    def factors(self, *shape: int) -> Tensor | None:
        """Return factors of 0 or 1 / (1 - rate); None if no element is dropped.

        Args:
            shape: Rows and their elements, in one or more dimensions. Draws depend on an element's
                index in its row alone, so padding does not change the draws before it.

        Returns:
            float32 on the device of the module; does not synchronize.
        """
        if not self.training or self.rate == 0:
            return None
        return keep_factors(self._current_key(), self.rate, shape)

    def _current_key(self) -> Tensor:
        return self.key if self.is_keyed else torch.empty_like(self.key).random_()


class DropoutKeys:
    """The keys of all `Dropout` modules of a model.

    Args:
        model: The model; modules added later are ignored.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if isinstance(module, Dropout)]

    def set(self, key: int) -> None:
        """Set the `key` of keyed passes: 64 bits, for instance `derive_key(seed, epoch, index)`.

        Keys are in the modules' device memory: set one before each replay of a captured pass. Does
        not synchronize.
        """
        for number, module in enumerate(self._modules):
            own = derive_key(key, KeyDomain.DROPOUT, number)
            module.key.fill_(own - (own >> 63 << 64))  # as int64

    @contextmanager
    def keyed(self, key: int | None = None) -> Iterator[None]:
        """Context manager for passes keyed by `key`; None: by the key that was `set` last.

        A captured pass is keyed by that of each replay: capture it without a key.
        """
        if key is not None:
            self.set(key)
        for module in self._modules:
            module.is_keyed = True
        try:
            yield
        finally:
            for module in self._modules:
                module.is_keyed = False


@contextmanager
def seeded_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's default generators of the CPU and of `device`, and restore them afterwards."""
    # Not torch.manual_seed: without a GPU it takes milliseconds, to record its call for CUDA.
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    with _generators:
        callers = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(seed & _LOW_63_BITS)
    try:
        yield
    finally:
        with _generators:
            for generator, state in zip(generators, callers, strict=True):
                generator.set_state(state)


_LOW_63_BITS = (1 << 63) - 1
_generators = threading.Lock()
"""Held for torch's lock of a generator, which a thread with the GIL would wait for forever."""
