"""A piece of pinned memory kept ready: getting one takes tens of milliseconds."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from torch import Tensor

from tgflow.cuda.device import Device


class SparePinned:
    """Pieces of one size, the next of which a helper thread gets once the first was asked for.

    Args:
        gpu: Which reads them in place.
        num_bytes: Of each.
    """

    def __init__(self, gpu: Device, num_bytes: int) -> None:
        self._gpu, self._num_bytes = gpu, num_bytes
        self._next: Future[Tensor] | None = None

    def take(self) -> Tensor:
        """Return a piece: the one that is ready, or as soon as it is.

        Raises:
            MemoryError: If there is none left.
        """
        got, self._next = self._next, None
        if got is None or got.exception() is not None:
            piece = self._gpu.allocate_host(self._num_bytes)
        else:
            piece = got.result()
        self._next = Future()
        threading.Thread(target=self._get, args=(self._next,), name="tgflow-spare").start()
        return piece

    def _get(self, got: Future[Tensor]) -> None:
        try:
            got.set_result(self._gpu.allocate_host(self._num_bytes))
        except Exception as error:  # whoever takes it asks again, and gets the error
            got.set_exception(error)
