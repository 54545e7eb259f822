"""Memory that returns to the system while its owner lives."""

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
    page = mmap.PAGESIZE
    begin = -(-values.data_ptr() // page) * page
    end = (values.data_ptr() + values.nbytes) // page * page
    if sys.platform == "linux" and begin < end:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def release_free() -> None:
    """Return memory that the C library keeps after its release to the system, if it can.

    Takes some milliseconds per 10 MB, in which other threads may wait to allocate.
    """
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
