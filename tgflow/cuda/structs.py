"""The structs that kernels take by value, as csrc/include/tgflow/detail/store_view.hpp has them."""

from __future__ import annotations

import ctypes


class Queries(ctypes.Structure):
    """Neighbourhoods to look up; addresses are of device memory."""

    _fields_ = (
        ("node", ctypes.c_uint64),
        ("t", ctypes.c_uint64),
        ("before", ctypes.c_uint64),
        ("before_all", ctypes.c_int64),
        ("size", ctypes.c_int64),
    )


class Sampler(ctypes.Structure):
    """Which neighbours are taken; `strategy` is a number of `_core.Strategy`."""

    _fields_ = (
        ("strategy", ctypes.c_int32),
        ("key", ctypes.c_uint64),
        ("span", ctypes.c_int64),
        ("types", ctypes.c_uint64),
    )


class NeighborRows(ctypes.Structure):
    """Where the answers go."""

    _fields_ = (
        ("node", ctypes.c_uint64),
        ("t", ctypes.c_uint64),
        ("eid", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("k", ctypes.c_int64),
    )
