"""Small work of torch, on the thread that asks for it."""

from __future__ import annotations

import torch


class one_thread:  # noqa: N801
    """Encloses torch's work on a batch's few thousand values: the same bits, at less cost.

    From some hundred values on, torch shares logarithms and the like among its threads, and waits
    until the others have woken up, while a loader keeps the cores busy: that takes longer than the
    work. What sums, or multiplies matrices, may have other bits on one thread.

    Example:
        >>> with one_thread():
        ...     x = ages.log1p()
    """

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)
