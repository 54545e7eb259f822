"""Operations of models on a GPU, with the signatures of the native core."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tgflow.cuda import attention, dropout, gru, row_lists
from tgflow.cuda.launch import Kernels


class KernelBackend:
    """What `tgflow._core` has for models, with the same arguments; does not synchronize.

    Args:
        kernels: The kernels of the device that the tensors are on.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def keep_factors(self, **arguments: Any) -> None:
        """Draw dropout."""
        dropout.keep_factors(self._kernels, **arguments)

    def attend(self, **arguments: Any) -> None:
        """Attend to neighbors."""
        attention.attend(self._kernels, **arguments)

    def attend_backward(self, **arguments: Any) -> None:
        """Take the gradients of that."""
        attention.attend_backward(self._kernels, **arguments)

    def gru_forward(self, **arguments: Any) -> None:
        """Take a GRU's step."""
        gru.gru_forward(self._kernels, **arguments)

    def gru_backward(self, **arguments: Any) -> None:
        """Take the gradients of that."""
        gru.gru_backward(self._kernels, **arguments)

    def sum_rows(self, rows: Tensor, row: Tensor, out: Tensor) -> None:
        """Fill each row of `out` with the sum of the `rows` that were picked from it by `row`."""
        lists = row_lists.row_lists(row, len(out))
        row_lists.sum_rows(self._kernels, rows=rows, lists=lists, out=out)
