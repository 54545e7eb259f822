"""Validates tensors before their addresses are taken, as the core's bindings do.

Functions that launch kernels take contiguous tensors, of the type and shape for which they ask
`Arguments`, raise its errors, and do not synchronize.
"""

from __future__ import annotations

import torch
from torch import Tensor

Dim = int | str
"""Required length of a dimension, or a letter for any length."""


class Arguments:
    """The tensors of one call, all on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @classmethod
    def beside(cls, name: str, tensor: Tensor) -> Arguments:
        """Return the arguments of a call on the device of argument `name`."""
        _check_type(name, tensor)
        return cls(tensor.device)

    def address(self, name: str, tensor: Tensor, dtype: torch.dtype, *shape: Dim) -> int:
        """Return the address of a contiguous tensor of this type and shape, on the device.

        Raises TypeError if it is none, ValueError with the expected and the actual type otherwise.
        """
        if self._fits(name, tensor, dtype, shape) and tensor.is_contiguous():
            return tensor.data_ptr()
        raise self._error(name, tensor, dtype, shape)

    def rows(self, name: str, tensor: Tensor, dtype: torch.dtype, *shape: Dim) -> tuple[int, int]:
        """Return address and stride, in elements, of a matrix whose rows are contiguous each."""
        if self._fits(name, tensor, dtype, shape) and (
            tensor.stride(1) == 1 or tensor.numel() == 0
        ):
            return tensor.data_ptr(), tensor.stride(0)
        raise self._error(name, tensor, dtype, shape)

    def _fits(self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[Dim, ...]) -> bool:
        _check_type(name, tensor)
        return (
            tensor.dtype == dtype
            and tensor.device == self._device
            and tensor.layout == torch.strided
            and tensor.dim() == len(shape)
            and all(isinstance(d, str) or d == n for d, n in zip(shape, tensor.shape, strict=True))
        )

    def _error(
        self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[Dim, ...]
    ) -> ValueError:
        wanted, found = (", ".join(map(str, dims)) for dims in (shape, tensor.shape))
        is_packed = tensor.layout == torch.strided and tensor.is_contiguous()
        return ValueError(
            f"{name} must be contiguous {_text(dtype)} [{wanted}] on {self._device}, got "
            f"{'' if is_packed else 'strided '}{_text(tensor.dtype)} [{found}] on {tensor.device}"
        )


def _check_type(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
