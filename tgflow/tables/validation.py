"""What a gather is given, looked at before anything reads or writes it."""

from __future__ import annotations

import torch
from torch import Tensor


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")


def check_ids(ids: Tensor) -> None:
    """Raise unless `ids` is a tensor of int64."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids must be a tensor, got {type(ids).__name__}; use torch.as_tensor(ids)")
    if ids.dtype != torch.int64:
        raise ValueError(f"ids must be int64, got {name_of(ids.dtype)}")


def out_for(ids: Tensor, out: Tensor | None, dim: int, dtype: torch.dtype) -> Tensor:
    """Return where the rows of `ids` go: `out` if it is fit for them, else a new tensor.

    Raises:
        ValueError: If `out` has another dtype, shape or device, or shares the memory of the ids,
            which rows would overwrite while they are read.
    """
    shape = (*ids.shape, dim)
    if out is None:
        return torch.empty(shape, dtype=dtype, device=ids.device)
    if out.shape != shape or out.dtype != dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {name_of(dtype)} {list(shape)}, "
            f"got {name_of(out.dtype)} {list(out.shape)}"
        )
    if out.device != ids.device:
        raise ValueError(f"out must be beside the ids on {ids.device}, it is on {out.device}")
    if _share_memory(ids, out):
        raise ValueError("out must not share memory with ids: rows would overwrite them")
    return out


def _share_memory(ids: Tensor, out: Tensor) -> bool:
    if ids.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():
        return False
    begin, end = out.data_ptr(), out.data_ptr() + out.nbytes
    reach = sum((n - 1) * step for n, step in zip(ids.shape, ids.stride(), strict=True))
    return ids.numel() > 0 and ids.data_ptr() < end and begin <= ids.data_ptr() + 8 * reach
