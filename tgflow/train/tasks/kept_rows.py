"""Rows of the latest events, in mapped files of bounded size."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tgflow.checkpoint import Checkpoint, Component, Tensors, check_like
from tgflow.checkpoint.sections import pieces_of, put_pieces
from tgflow.checkpoint.typed import read_as, read_natural

_SEGMENT_BYTES = 4 << 20
_ALIGNMENT = 64


class KeptRows(Component):
    """Rows of the latest events by log position, in mapped files of bounded size.

    A segment of consecutive events is a file of its own without a name, whose space is allocated
    before it is mapped: a full disk raises OSError, and a process that is killed leaves nothing.
    Checkpoints hold the rows: full segments sealed, so that each is written once and linked into
    later checkpoints, and the last one as far as it goes. A file that outlives the process would
    instead lack rows after a kill, where those since the checkpoint have overwritten them, and a
    checkpoint could not be moved without it. So rows take up to twice `capacity` on disk; beyond
    these bytes the oldest segment is dropped for a new one.
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, tuple[int, torch.dtype]],
        capacity: int,
        directory: str | None = None,
    ) -> None:
        self.name, self._columns, self._directory = name, columns, directory
        self._row_bytes = sum(width * dtype.itemsize for width, dtype in columns.values())
        rows = min(_SEGMENT_BYTES, capacity // 8) // self._row_bytes // _ALIGNMENT
        self._size, self._capacity = max(1, rows) * _ALIGNMENT, capacity
        """Events of a segment, and bytes of all."""
        self._segments: dict[int, Tensors] = {}
        self.first: int | None = None
        """The first event ever kept; None: none yet."""
        self.stop = 0
        """The event after the last one kept."""

    def begin(self, stop: int) -> int:
        """Return the first event that is kept when those before `stop` are; `stop` without any."""
        if self.first is None:
            return stop
        most = max(2, self._capacity // (self._size * self._row_bytes))
        return max(self.first, ((stop - 1) // self._size + 1 - most) * self._size)

    def write(self, start: int, rows: Tensors) -> None:
        """Keep rows of the next events; OSError if the disk is full."""
        self.first = start if self.first is None else self.first
        self.stop, done = start + len(next(iter(rows.values()))), 0
        while start + done < self.stop:
            number, place = divmod(start + done, self._size)
            if number not in self._segments:
                begin, held = self.begin(start + done + 1), self._segments
                self._segments = {n: x for n, x in held.items() if (n + 1) * self._size > begin}
                self._segments[number] = self._mapped()
            some = min(self.stop - start - done, self._size - place)
            for name, column in self._segments[number].items():
                column[place : place + some] = rows[name][done : done + some]
            done += some

    def _mapped(self) -> Tensors:
        with tempfile.TemporaryFile(dir=self._directory) as file:
            os.posix_fallocate(file.fileno(), 0, self._size * self._row_bytes)
            mapped = mmap.mmap(file.fileno(), self._size * self._row_bytes)
        flat = torch.frombuffer(mapped, dtype=torch.uint8)
        sizes = [width * dtype.itemsize * self._size for width, dtype in self._columns.values()]
        parts = zip(self._columns.items(), torch.split(flat, sizes), strict=True)
        return {name: x.view(dtype).view(-1, width) for (name, (width, dtype)), x in parts}

    def read(self, eid: Tensor) -> Tensors:
        number, place = eid // self._size, eid % self._size
        found = self._empty(len(eid))
        for each in np.unique(number.numpy()).tolist():
            rows = number == each
            for name, column in self._segments[each].items():
                found[name][rows] = column[place[rows]]
        return found

    def _empty(self, num: int) -> Tensors:
        return {
            name: torch.empty(num, w, dtype=dtype) for name, (w, dtype) in self._columns.items()
        }

    def save(self, writer: Checkpoint, *, volatile: bool = False) -> None:
        """Save the rows, `volatile` as `Checkpoint.put`; nothing without any."""
        if self.first is None:
            return
        segments = dict(self._segments)
        writer.note(self.name, {"first": self.first, "stop": self.stop, "size": self._size})

        def read(start: int, stop: int) -> Tensors:
            if start == stop:
                return self._empty(0)
            return {name: x[: stop - start] for name, x in segments[start // self._size].items()}

        begin = self.begin(self.stop) // self._size * self._size
        put_pieces(writer, self.name, self._size, self.stop, read, first=begin, volatile=volatile)

    def load(self, reader: Checkpoint) -> None:
        if self.name not in reader.meta:
            return
        noted = read_as(dict[str, int], reader.meta[self.name], self.name)
        first, stop, self._size = (read_natural(noted, name) for name in ("first", "stop", "size"))
        if not self._size or first > stop:
            raise ValueError(
                f"{self.name} has segments of {self._size} rows from {first} to {stop}"
            )
        self.first, self._segments = first, {}
        start = begin = self.begin(stop) // self._size * self._size
        for piece in pieces_of(reader, self.name, self._size, stop, first=begin):
            check_like(self.name, {name: x[:0] for name, x in piece.items()}, self._empty(0))
            self.write(start, piece)
            start = self.stop
        if start != stop:
            raise ValueError(f"{self.name} has rows up to {start}, not {stop}")
