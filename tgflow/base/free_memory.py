"""Advice to the system on the memory of tensors."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

_LIBC = ctypes.CDLL(None)


def discard(values: Tensor) -> None:
    """Free the whole pages of a contiguous tensor in host memory, whose values are undefined then.

    On Linux they read as zeros, and take memory again as they are written. Elsewhere nothing is
    freed.
    """
    _advise(values, "MADV_DONTNEED")


def prefer_huge_pages(values: Tensor) -> None:
    """Ask for huge pages for a new tensor in host memory, from 4 MB on, on Linux.

    Large memory is new to the process at every allocation, and its first use then costs a page
    fault per 2 MB, not per 4 KB.
    """
    if values.nbytes >= 4 << 20:
        _advise(values, "MADV_HUGEPAGE")


def _advise(values: Tensor, advice: str) -> None:
    """Advise the system on the whole pages of a contiguous tensor; a refusal is ignored."""
    page = mmap.PAGESIZE
    begin = -(-values.data_ptr() // page) * page
    end = (values.data_ptr() + values.nbytes) // page * page
    if sys.platform == "linux" and begin < end:
        size = ctypes.c_size_t(end - begin)
        _LIBC.madvise(ctypes.c_void_p(begin), size, getattr(mmap, advice))


def release_free() -> None:
    """Return memory that the C library keeps after its release to the system, if it can.

    Takes some milliseconds per 10 MB, in which other threads may wait to allocate.
    """
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
