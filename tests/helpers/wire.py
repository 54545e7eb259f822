"""A wire between two network namespaces that is slow and loses packets, in user space.

Two tun devices, one in each namespace; threads of this process carry packets from one to the other.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 1 << 16


class Wire:
    """Carries packets between two devices: what it has carried, and lost, it counts.

    Args:
        delay: Seconds that each packet takes.
        loss: Share of packets that never come.
    """

    def __init__(self, delay: float, loss: float) -> None:
        self._delay, self._loss = delay, loss
        self.carried = self.lost = 0
        self._counting = threading.Lock()

    def carry(self, source: int, target: int, draw: random.Random) -> None:
        """Carry packets one way, until a device is closed; blocks."""
        on_the_way: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
        threading.Thread(target=self._deliver, args=(on_the_way, target), daemon=True).start()
        try:
            while True:
                packet = os.read(source, _PACKET_BYTES)
                is_lost = draw.random() < self._loss
                with self._counting:
                    self.lost += is_lost
                    self.carried += not is_lost
                if not is_lost:
                    on_the_way.put((time.monotonic() + self._delay, packet))
        except OSError:  # the device has gone
            on_the_way.put(None)

    @staticmethod
    def _deliver(on_the_way: SimpleQueue[tuple[float, bytes] | None], target: int) -> None:
        while (item := on_the_way.get()) is not None:
            time.sleep(max(0.0, item[0] - time.monotonic()))
            try:
                os.write(target, item[1])
            except OSError:  # as a cable whose other end is not there
                continue


@contextmanager
def laid(devices: Sequence[str], delay: float, loss: float) -> Iterator[Wire]:
    """Lay a wire between two tun devices that are made here; move them to their namespaces within.

    Raises:
        OSError: If there can be no such devices.
    """
    wire, ends = Wire(delay, loss), [_tun(name) for name in devices]
    for number, (source, target) in enumerate((ends, ends[::-1])):
        draw = random.Random(number)
        threading.Thread(target=wire.carry, args=(source, target, draw), daemon=True).start()
    try:
        yield wire
    finally:
        for end in ends:
            os.close(end)


def _tun(name: str) -> int:
    """Return the descriptor of a new device, whose packets it reads and writes."""
    opened = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(opened, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(opened)
        raise
    return opened
