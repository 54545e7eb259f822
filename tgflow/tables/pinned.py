"""Host memory that kernels may read in place: registered piece by piece, and given back as one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from tgflow.tables.host import HostRows

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

_PAGES = 2 << 20
_MOST_AHEAD = 256 << 20
_AHEAD_SHARE = 4


class PinnedRegion:
    """The beginning of some rows' memory, registered with a GPU; owns that, and releases it.

    Rows do not move as they grow, so a longer beginning is one piece more: what kernels read
    meanwhile stays as it is.
    """

    def __init__(self, gpu: Device, rows: HostRows) -> None:
        self._gpu, self._rows = gpu, rows
        self._pieces: list[int] = []
        self.num_bytes = 0
        """Registered so far."""
        self._release = weakref.finalize(self, _release, gpu, rows, self._pieces)
        self._release.atexit = False  # the process's end gives all back, the driver perhaps before

    def ensure(self, num_bytes: int) -> None:
        """Register the first `num_bytes` bytes.

        Raises:
            MemoryError: If the host cannot pin them; what was registered stays so.
        """
        if num_bytes <= self.num_bytes:
            return
        ahead = min(self.num_bytes // _AHEAD_SHARE, _MOST_AHEAD)
        target = -(-max(num_bytes, self.num_bytes + ahead) // _PAGES) * _PAGES
        self._rows.commit(target)
        address = self._rows.address + self.num_bytes
        self._gpu.register(address, target - self.num_bytes)
        self._pieces.append(address)
        self.num_bytes = target

    def release(self) -> None:
        """Give all back, once the GPU has done its work: waits for it."""
        self._release()
        self.num_bytes = 0


def _release(gpu: Device, rows: HostRows, pieces: list[int]) -> None:
    """Unregister `pieces`; takes `rows` to keep their memory until then."""
    if pieces:
        gpu.synchronize()
    for address in pieces:
        gpu.unregister(address)
    pieces.clear()
