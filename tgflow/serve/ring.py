"""Frames of a run's progress in shared memory: one writer, any number of readers."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from errno import ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

_STATE, _ENTRY = struct.Struct("<QQQdQ"), struct.Struct("<QQQQ")
_CRC = struct.Struct("<I")
_WANTED, _INDEX = 256, 4096
NUM_ENTRIES = 4096
"""Most frames kept, whatever their size."""
_ENTRY_SIZE = 64
_DATA = _INDEX + NUM_ENTRIES * _ENTRY_SIZE
_AT_ONCE = 512
"""Buffers per write, of which systems accept 1,024."""
_SHARE = 0.75
"""Share of the free memory that a ring may take: other processes need shared memory, too."""
_PAD = bytes(8)
_KINDS = {
    str(kind).removeprefix("torch."): kind
    for kind in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64)
}


class Lapped(Exception):
    """Raised when the next frame of a reader has been overwritten: start from a checkpoint."""


class Head(NamedTuple):
    """The latest frame of a ring."""

    number: int
    """Its number, from 1; 0 before the first one."""
    end: int
    """End of its data, ever counting."""
    position: int
    """Events learned by the run."""
    time: float
    """Time of publication, in seconds since 1970."""
    has_ended: int
    """1 once the run has learned its last micro-batch."""


class Frame(NamedTuple):
    """The changes of a run by the events `[begin, end)`."""

    number: int
    begin: int
    end: int
    note: dict[str, Any]
    """JSON of the writer."""
    time: float
    """Time of publication, in seconds since 1970."""
    tensors: dict[str, Tensor]


class Ring:
    """Numbered frames in an unnamed file in memory, of which the oldest are overwritten.

    The writer never waits. A reader copies a frame and then checks that it was not overwritten
    meanwhile. Processes share the ring by its descriptor, and its memory is released with the last
    of them, however they end.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.capacity = os.fstat(fd).st_size - _DATA
        self.usable = self.capacity
        """Bytes that the writer uses: fewer than `capacity` if no more memory was left."""
        self._head = Head(0, 0, 0, 0.0, 0)

    @classmethod
    def create(cls, capacity: int) -> Ring:
        """Return an empty ring for `capacity` bytes of frames, which are taken as they are used.

        It is smaller if less memory is free; OSError if there is none even for its index.
        """
        shared = Path("/dev/shm")
        folder = str(shared) if os.access(shared, os.W_OK) else None
        with tempfile.TemporaryFile(dir=folder) as file:
            _written(file.fileno(), [bytes(_DATA)], 0)
            found = os.fstatvfs(file.fileno())
            if found.f_blocks:  # 0: any number
                capacity = min(capacity, int(_SHARE * found.f_bavail * found.f_frsize))
            os.ftruncate(file.fileno(), _DATA + capacity)
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.fd)

    def begin_at(self, position: int) -> None:
        """Set the position of a ring without frames."""
        self._set(self._head._replace(position=position, time=time.time()))

    def end(self) -> None:
        """Mark the run as ended."""
        self._set(self._head._replace(has_ended=1))

    def write(self, begin: int, end: int, note: object, tensors: Mapping[str, Tensor]) -> int:
        """Publish a frame and return its size; copies the tensors, which are on the CPU.

        If no more memory is left, the ring wraps at what it has taken so far. Raises OSError if the
        frame is larger than the ring: readers start from a checkpoint then.
        """
        layout, size = [], 0
        parts: list[memoryview | bytes] = []
        for name, x in tensors.items():
            data = x.detach().contiguous().view(-1).view(torch.uint8).numpy().data
            layout.append((name, str(x.dtype).removeprefix("torch."), list(x.shape)))
            parts += [data, _PAD[: -len(data) % 8]]
            size += len(data) + -len(data) % 8
        now = time.time()
        text = json.dumps({"end": end, "note": note, "layout": layout, "time": now}).encode()
        text += b" " * (-len(text) % 8)
        parts = [memoryview(struct.pack("<Q", len(text))), memoryview(text), *parts]
        size += 8 + len(text)
        number, is_written = self._head.number + 1, False
        while size <= self.usable and not is_written:
            start = self._head.end
            if (place := start % self.capacity) + size > self.usable:
                start, place = start + self.capacity - place, 0
            # readers must see that the place is taken before its bytes change
            self._set(self._head._replace(end=start + size))
            try:
                at = _DATA + place
                for first in range(0, len(parts), _AT_ONCE):
                    some = [part for part in parts[first : first + _AT_ONCE] if part]
                    at += _written(self.fd, some, at)
                self._pwrite(_entry_at(number), _ENTRY.pack(number, start, size, begin))
                is_written = True
            except OSError:
                self.usable = place
        self._set(self._head._replace(number=number, position=end, time=now))
        if not is_written:
            self.usable = self.capacity  # there may be more memory for the next one
            raise OSError(ENOSPC, f"a frame of {size:,} bytes is larger than the ring")
        return size

    @property
    def head(self) -> Head:
        """The latest frame; any process may read it."""
        while True:
            data = self._pread(0, _STATE.size)
            if data is not None:
                return Head(*_STATE.unpack(data))
            if not any(os.pread(self.fd, _STATE.size, 0)):
                return Head(0, 0, 0, 0.0, 0)

    def find(self, position: int) -> int | None:
        """Return the number of the frame that begins at a position; None if there is none yet.

        Raises Lapped if it was overwritten, or is none of this ring's.
        """
        head = self.head
        if position >= head.position:
            return None
        for number in range(head.number, max(0, head.number - NUM_ENTRIES), -1):
            entry = self._entry(number)
            if entry is None or head.end - entry[1] > self.capacity or entry[3] < position:
                break  # lost or overwritten, as all before it are
            if entry[3] == position:
                return number
        raise Lapped(f"the ring does not have all frames from event {position:,} on")

    def read(self, number: int) -> Frame | None:
        """Return a copy of a frame; None if it is not there yet; Lapped if it was overwritten."""
        if self.head.number < number:
            return None
        entry = self._entry(number)
        if entry is None:
            raise Lapped(f"frame {number} was overwritten")
        _, start, size, begin = entry
        data = bytearray(os.pread(self.fd, size, _DATA + start % self.capacity))
        if self.head.end - start > self.capacity:
            raise Lapped(f"frame {number} was overwritten")
        at = 8 + int(struct.unpack_from("<Q", data)[0])
        made = json.loads(data[8:at])
        tensors: dict[str, Tensor] = {}
        for name, kind, shape in made["layout"]:
            dtype, numel = _KINDS[kind], 1
            for length in shape:
                numel *= length
            flat = torch.frombuffer(data, dtype=dtype, count=numel, offset=at) if numel else None
            tensors[name] = torch.empty(shape, dtype=dtype) if flat is None else flat.view(shape)
            at += numel * dtype.itemsize + -numel * dtype.itemsize % 8
        return Frame(number, begin, made["end"], made["note"], made["time"], tensors)

    def ask_for_checkpoint(self) -> None:
        """Ask the writer for a checkpoint, from which a reader can start."""
        os.pwrite(self.fd, os.urandom(8), _WANTED)

    @property
    def asked(self) -> bytes:
        """Changes with each call of `ask_for_checkpoint`."""
        return os.pread(self.fd, 8, _WANTED)

    def _set(self, head: Head) -> None:
        self._head = head
        self._pwrite(0, _STATE.pack(*head))

    def _entry(self, number: int) -> tuple[int, ...] | None:
        data = self._pread(_entry_at(number), _ENTRY.size)
        found = None if data is None else _ENTRY.unpack(data)
        return found if found is not None and found[0] == number else None

    def _pwrite(self, at: int, data: bytes) -> None:
        os.pwrite(self.fd, data + _CRC.pack(zlib.crc32(data)), at)

    def _pread(self, at: int, size: int) -> bytes | None:
        """Return a record; None if it is being written."""
        data = os.pread(self.fd, size + _CRC.size, at)
        return data[:size] if zlib.crc32(data[:size]) == _CRC.unpack(data[size:])[0] else None


def _entry_at(number: int) -> int:
    return _INDEX + number % NUM_ENTRIES * _ENTRY_SIZE


def _written(fd: int, parts: Sequence[memoryview | bytes], at: int) -> int:
    """Write buffers one after the other, and return their size."""
    size = sum(map(len, parts))
    if os.pwritev(fd, parts, at) != size:
        raise OSError(ENOSPC, "no memory is left for the frames of a served run")
    return size
