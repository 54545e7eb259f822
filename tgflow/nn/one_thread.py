"""Small work of torch, on the thread that asks for it."""

from __future__ import annotations

import torch


class one_thread:  # noqa: N801
    """Encloses torch's work on a batch's few thousand values, which it would share among threads.

    From some hundred values on torch wakes its other threads for logarithms and the like, and waits
    for them while a loader's keep the cores busy, for longer than the work takes. What is computed
    value by value, or summed along short rows, has the same bits.

    Example:
        >>> with one_thread():
        ...     x = ages.log1p()
    """

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)
