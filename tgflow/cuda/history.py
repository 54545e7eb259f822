"""Launches the kernel that finds versions of a node memory (csrc/cuda/history.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word

import torch
from torch import Tensor

from tgflow.cuda.launch import Kernels

_THREADS = 256
_MOST_BLOCKS = 1024


class VersionRing(ctypes.Structure):
    """Overwritten versions (detail/version_ring.hpp)."""

    _fields_ = (
        ("head", _word),
        ("num_nodes", _number),
        ("link", _word),
        ("clock", _word),
        ("clock_width", _number),
        ("next", _word),
        ("capacity", _number),
    )


class VersionQueries(ctypes.Structure):
    """Which versions are asked for (cuda/history.cu)."""

    _fields_ = (("node", _word), ("position", _word), ("size", _number), ("slot", _word))


def find_versions(
    kernels: Kernels,
    head: Tensor,
    link: Tensor,
    clock: Tensor,
    next_number: Tensor,
    capacity: int,
    node: Tensor,
    position: Tensor,
) -> Tensor:
    """Return the slot of each node's latest kept version at or before a position, -1 without one.

    All tensors are int64, contiguous and on the kernels' device. Does not synchronize.

    Args:
        kernels: Where to run.
        head: `[N]`, the number of each node's latest version.
        link: `[S, 3]`, with at least `capacity` rows.
        clock: `[S, clock_width]`, likewise.
        next_number: `[]`, the number of the next version.
        capacity: Versions that are kept.
        node: `[Q]`; those outside of `head` have no version.
        position: `[Q]`.

    Raises:
        ValueError: If a tensor is of another dtype, shape or device.
    """
    size = len(node)
    _check(node.device, head=head, link=link, clock=clock, next=next_number, position=position)
    _check(node.device, node=node)
    if link.shape[1:] != (3,) or min(len(link), len(clock)) < capacity or len(position) != size:
        raise ValueError(
            f"a ring of {capacity} versions needs as many links of 3 and clocks, and {size} "
            f"positions; got {list(link.shape)}, {list(clock.shape)} and {list(position.shape)}"
        )
    slot = torch.empty_like(node)
    if size == 0:
        return slot
    ring = VersionRing(
        head.data_ptr(),
        len(head),
        link.data_ptr(),
        clock.data_ptr(),
        clock.shape[1],
        next_number.data_ptr(),
        capacity,
    )
    queries = VersionQueries(node.data_ptr(), position.data_ptr(), size, slot.data_ptr())
    blocks = min(-(-size // _THREADS), _MOST_BLOCKS)
    kernels.launch("find_versions", blocks, _THREADS, ring, queries)
    return slot


def _check(device: torch.device, **columns: Tensor) -> None:
    for name, column in columns.items():
        if column.dtype != torch.int64 or column.device != device or not column.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous int64 on {device}, "
                f"got {column.dtype} on {column.device}"
            )
